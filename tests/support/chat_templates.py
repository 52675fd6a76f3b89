"""Real chat templates, what they write of past turns, and how far it is read back."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gateway.detection.jinja import compiled
from normalizers import FormatSpec, Message, coalesce, fold, normalizer
from normalizers.derive.turns import Call, NotRendered, Turn, Turns
from tests.normalizers.splits import tool

ROOT = Path(__file__).parents[2]
OWN = ROOT / "tests/normalizers/templates"
UNKNOWN = ROOT / "tests/normalizers/unknown"
"""Templates of ours whose formats no built-in one reads."""
SHARED = Path(os.environ.get("CTXGATE_TEMPLATES", ROOT.parent / "shared" / "conformance" / "templates"))
PIECE = 5

KINDS: dict[str, Any] = {
    "wxText": "string",
    "wxCount": "integer",
    "wxRatio": "number",
    "wxFlag": "boolean",
    "wxMaybe": {"type": ["integer", "null"]},
    "wxDeep": "object",
    "wxList": "array",
}
TOOLS = [tool("wxSearch", **KINDS), tool("wxPing", wxPlace="string")]
# Some templates refuse a list of types.
SHOWN = [tool("wxSearch", **{**KINDS, "wxMaybe": "integer"}), tool("wxPing", wxPlace="string")]
for _shown in SHOWN:
    _shown["function"]["description"] = "wxDescribed"
    for _property in _shown["function"]["parameters"]["properties"].values():
        _property["description"] = "wxDescribed"

CODE = "for x in y:\n\tif x < 3 and 'q' in y:\n\t\tprint(\"a\\tb\")\n"
DEEP = {"inner": {"items": [2, "wx three", None, False], "said": 'so "it" is'}, "k": -8}
THOUGHT = "wxThought, one by one."
SAID = "wxSaid: I look."


class Probe(NamedTuple):
    calls: tuple[Call, ...] = ()
    content: str | None = None
    reasoning: str | None = None


def search(**arguments: Any) -> Call:
    return "wxSearch", arguments


PROBES: dict[str, Probe] = {
    "words": Probe((search(wxText="wx some words"),)),
    "quotes and signs": Probe((search(wxText="wx \"so\" & 'that' \\ {a} [b] ñ☂ </i> wx"),)),
    "code": Probe((search(wxText=CODE),)),
    "an integer": Probe((search(wxCount=11),)),
    "a fraction": Probe((search(wxRatio=0.25),)),
    "a boolean": Probe((search(wxFlag=True),)),
    "null": Probe((search(wxMaybe=None),)),
    "digits that are text": Probe((search(wxText="0017"),)),
    "an object": Probe((search(wxDeep=DEEP),)),
    "an array": Probe((search(wxList=["wx first", 4, {"a": "b"}]),)),
    "all types": Probe((search(wxText="wx w", wxCount=11, wxRatio=0.25, wxFlag=False, wxDeep=DEEP, wxList=[5, 6]),)),
    "no arguments": Probe((("wxPing", {}),)),
    "two calls": Probe((search(wxText="wx one", wxCount=4), ("wxPing", {"wxPlace": "wx Oslo"}))),
    "text, a call": Probe((search(wxText="wx w"),), SAID),
    "text, two calls": Probe((search(wxText="wx w"), ("wxPing", {"wxPlace": "wx Rome"})), SAID),
    "reasoning, a call": Probe((search(wxText="wx w"),), None, THOUGHT),
    "reasoning, text, a call": Probe((search(wxText="wx w"),), SAID, THOUGHT),
    "text": Probe((), "wxSaid no more: [2] {y} g(y) <i>."),
    "reasoning, text": Probe((), "wxSaid no more.", THOUGHT),
}

CALLING = [name for name, probe in PROBES.items() if probe.calls]
QUOTES = "it writes strings without quotes, or the quotes in them without escapes"
BROKEN: dict[str, dict[str, str]] = {
    "lcpp-LFM2.5-8B-A1B": {"code": QUOTES},
    "vllm-gemma3_pythonic": dict.fromkeys(("two calls", "all types"), "it puts no comma between arguments"),
    **{
        name: dict.fromkeys(
            ("words", "quotes and signs", "code", "all types", "two calls", "text, a call", "text, two calls"), QUOTES
        )
        for name in ("vllm-llama3.2_pythonic", "vllm-toolace")
    },
    "xinf-GLM-4.7": dict.fromkeys(CALLING, "it ends a call with the mark that begins one"),
    "xinf-qwen1.5-chat": dict.fromkeys(CALLING, "it doesn't close the name's quotes"),
    "lcpp-MiniMax-M3": {
        "null": "it drops an argument that is null",
        **dict.fromkeys(("an object", "all types"), "it writes null and an empty text alike"),
    },
    "lcpp-NVIDIA-Nemotron-Nano-v2": dict.fromkeys(
        ("text", "text, a call", "text, two calls"), "it writes the text into the reasoning that it opens"
    ),
}
"""By template and probe, why what the template writes can't be read back. All else must be."""

Found = dict[str, tuple[Probe, Turn]]


renderer = cache(compiled)


@cache
def rendered(source: str) -> Found:
    """By probe, what there is to read, and the turn. Raises NotRendered if the template shows no past calls."""
    template = Turns(renderer(source), SHOWN)
    found: Found = {}
    for name, probe in PROBES.items():
        if probe.reasoning and not template.shows_reasoning:
            continue
        try:
            turn = template.turn(*probe)
        except NotRendered:
            continue  # some templates refuse two calls, or text beside one
        if all(call in turn.text for call, _ in probe.calls):
            found[name] = probe, turn
    return found


def read(spec: FormatSpec, turn: Turn, size: int) -> Message:
    opened = any(turn.prompt.rstrip().endswith(opening) for opening, _ in spec.think)
    reader = normalizer(spec, TOOLS, reasoning_open=opened)
    pieces = (turn.text[at : at + size] for at in range(0, len(turn.text), size))
    events = [event for piece in pieces for event in reader.feed(piece)]
    return fold(coalesce([*events, *reader.finish("stop")]))


def difference(spec: FormatSpec, probe: Probe, turn: Turn) -> str:
    """How what is read differs from the probe; empty if it doesn't."""
    for size in (max(1, len(turn.text)), PIECE):
        message = read(spec, turn, size)
        calls = [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
        # As JSON, since 1, 1.0 and true are equal in Python.
        if json.dumps(calls, sort_keys=True) != json.dumps(probe.calls, sort_keys=True):
            return f"calls {calls}"
        said, thought = probe.content or "", probe.reasoning or ""
        if f"<|channel|>analysis<|message|>{said}" in turn.text:
            said, thought = "", thought or said  # gpt-oss thinks in place of text beside a call
        for part, wanted, written in (
            (message.content, said, probe.content),
            (message.reasoning, thought, probe.reasoning),
        ):
            dropped = written and written not in turn.text  # beside a call, some templates drop it
            if not dropped and part.strip() != wanted.strip():
                return f"text {part!r}, not {wanted!r}"
    return ""


def templates(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jinja"))


needs_templates = pytest.mark.skipif(
    not templates(SHARED),
    reason="the shared chat templates are missing: they lie beside the checkout and are never copied into it",
)

"""Conversations that a template renders, so that the round trip decides: what it writes must be read back exactly."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from normalizers.derive.turns import Call, Json, NotRendered, Turn, Turns
from normalizers.events import Event, Message, coalesce, fold
from normalizers.registry import normalizer
from normalizers.spec import FormatSpec
from normalizers.values.coerce import SchemaIndex

FIND, PING = "qx_find", "qx_ping"
TEXT, COUNT, PLACE = "qx_text", "qx_count", "qx_place"

_KINDS: Json = {
    TEXT: {"type": "string"},
    COUNT: {"type": "integer"},
    "qx_ratio": {"type": "number"},
    "qx_flag": {"type": "boolean"},
    "qx_maybe": {"type": ["integer", "null"]},
    "qx_deep": {"type": "object"},
    "qx_list": {"type": "array"},
}


def _tool(name: str, properties: Json) -> Json:
    described = {key: {**kind, "description": "qx described"} for key, kind in properties.items()}
    parameters = {"type": "object", "properties": described, "required": []}
    return {"type": "function", "function": {"name": name, "description": "qx described", "parameters": parameters}}


TOOLS = [_tool(FIND, _KINDS), _tool(PING, {PLACE: {"type": "string"}})]
SHOWN = deepcopy(TOOLS)
"""The tools for rendering: some templates refuse a list of types."""
SHOWN[0]["function"]["parameters"]["properties"]["qx_maybe"]["type"] = "integer"

_CODE = "if a < b and 'c' in d:\n\tprint(\"e\\tf\")\n\n\treturn [g]\n"
_DEEP = {"within": {"list": [3, "qx four", None, True], "quoted": 'he said "no"'}, "m": -5}
THOUGHT = "qxthought step by step."
SAID = "qxsaid here it is."
PIECE = 5
"""Characters of a piece, for the reading in pieces."""


class Probe(NamedTuple):
    calls: tuple[Call, ...] = ()
    content: str | None = None
    reasoning: str | None = None


def _find(**arguments: Any) -> Call:
    return FIND, {f"qx_{key}": value for key, value in arguments.items()}


_ALL = _find(text="qx w", count=37, ratio=0.75, flag=False, deep=_DEEP, list=[7, 8])
_TWO = (_find(text="qx first", count=4), (PING, {PLACE: "qx Oslo"}))

# What tells the most comes first, since a format fails with the first probe that it doesn't read.
PROBES: dict[str, Probe] = {
    "text, two calls": Probe((_find(text="qx w"), (PING, {PLACE: "qx Rome"})), SAID),
    "all types": Probe((_ALL,)),
    "no arguments": Probe(((PING, {}),)),
    "reasoning, text, a call": Probe((_find(text="qx w"),), SAID, THOUGHT),
    "text": Probe((), "qxsaid no more: [2] {y} g(y) <i>."),
    "reasoning, text": Probe((), "qxsaid no more.", THOUGHT),
    "two calls": Probe(_TWO),
    "words": Probe((_find(text="qx some words"),)),
    "quotes and signs": Probe((_find(text="qx \"so\" & 'that' \\ {a} [b] ñ☂ </i> qx"),)),
    "code": Probe((_find(text=_CODE),)),
    "an integer": Probe((_find(count=37),)),
    "a fraction": Probe((_find(ratio=0.75),)),
    "a boolean": Probe((_find(flag=True),)),
    "null": Probe((_find(maybe=None),)),
    "digits that are text": Probe((_find(text="0042"),)),
    "an object": Probe((_find(deep=_DEEP),)),
    "an array": Probe((_find(list=["qx first", 4, {"a": "b"}]),)),
    "text, a call": Probe((_find(text="qx w"),), SAID),
    "reasoning, a call": Probe((_find(text="qx w"),), None, THOUGHT),
}

Rendered = Mapping[str, tuple[Probe, Turn]]


def rendered(turns: Turns) -> Rendered:
    """By name, the probes that the template renders with all their calls."""
    found: dict[str, tuple[Probe, Turn]] = {}
    for name, probe in PROBES.items():
        if probe.reasoning and not turns.shows_reasoning:
            continue
        try:
            turn = turns.turn(*probe)
        except NotRendered:
            continue  # some templates refuse two calls, or text beside one
        if all(call in turn.text for call, _ in probe.calls):
            found[name] = probe, turn
    return found


def misread(spec: FormatSpec, found: Rendered) -> str:
    """The first probe that the format doesn't read back exactly, whole and in pieces; empty if there is none."""
    tools = SchemaIndex(TOOLS)
    for size in (0, PIECE):
        for name, (probe, turn) in found.items():
            if not _is_right(probe, turn, _read(spec, tools, turn, size)):
                return name
    return ""


def _read(spec: FormatSpec, tools: SchemaIndex, turn: Turn, size: int) -> Message:
    opened = any(turn.prompt.rstrip().endswith(opening.rstrip()) for opening, _ in spec.think)
    reader = normalizer(spec, tools, reasoning_open=opened)
    events: list[Event] = []
    for piece in _pieces(turn.text, size):
        events += reader.feed(piece)
    return fold(coalesce([*events, *reader.finish("stop")]))


def _pieces(text: str, size: int) -> Iterator[str]:
    size = size or max(1, len(text))
    return (text[at : at + size] for at in range(0, len(text), size))


def _is_right(probe: Probe, turn: Turn, message: Message) -> bool:
    calls = [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
    # As JSON, since 1, 1.0 and true are equal in Python.
    if json.dumps(calls, sort_keys=True) != _as_json(probe.calls):
        return False
    said, thought = probe.content or "", probe.reasoning or ""
    if said and f"<|channel|>analysis<|message|>{said}" in turn.text:
        said, thought = "", thought or said  # gpt-oss thinks in place of text beside a call
    return _same(message.content, said, probe.content, turn) and _same(
        message.reasoning, thought, probe.reasoning, turn
    )


def _as_json(calls: Sequence[Call]) -> str:
    return json.dumps([[name, arguments] for name, arguments in calls], sort_keys=True)


def _same(read: str, wanted: str, written: str | None, turn: Turn) -> bool:
    dropped = written and written not in turn.text  # beside a call, some templates drop it
    return bool(dropped) or read.strip() == wanted.strip()

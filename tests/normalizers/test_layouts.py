"""Calls that are forced look as the model's own template writes them: the grammar accepts what the template renders."""

from __future__ import annotations

from dataclasses import fields as fields_of
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from normalizers import FormatSpec, ToolCall, detect, get
from normalizers.derive import round_trip
from normalizers.derive.turns import NotRendered, Turn
from normalizers.registry import UnknownFormat, define
from normalizers.spec import Layout
from normalizers.write.grammar import Grammar, grammar
from normalizers.write.layout import layout_of
from normalizers.write.render import render_calls
from tests.normalizers.gbnf import Machine
from tests.support.chat_templates import (
    BROKEN,
    OWN,
    SHARED,
    TOOLS,
    UNKNOWN,
    Probe,
    needs_templates,
    rendered,
    renderer,
    templates,
)

UNREADABLE = "no format reads what the template itself writes"
MIXED = "objects are JSON and arrays are Python's, in one call"
NOT_FORCED = {
    "lcpp-LFM2.5-8B-A1B": MIXED,
    "lcpp-MiniMax-M3": "tags within tags have no grammar",
    **dict.fromkeys(
        ("vllm-gemma3_pythonic", "vllm-llama3.2_pythonic", "vllm-toolace", "xinf-GLM-4.7", "xinf-qwen1.5-chat"),
        UNREADABLE,
    ),
}
"""Templates whose calls the grammar of their format doesn't accept."""

OWN_NOT_LAID_OUT = {
    "minimax_m3": "tags within tags have no grammar",
    "tags_that_tell_types": "it says json for every type but text",
}

SOME = ("two calls", "all types", "reasoning, a call")
"""Probes for the templates of others: a machine for grammars takes its time."""


@cache
def laid_out(source: str) -> FormatSpec:
    """The format that the gateway would choose for a template, with the template's own layout."""
    detected = detect(chat_template=source)
    name = detected.format if detected else ""
    found = round_trip(renderer(source), detected=name)
    fields = found.fields or {"like": found.format or name or "auto"}
    return define(fields if found.layout is None else {**fields, "layout": found.layout})


def refused(spec: FormatSpec, forced: Grammar, found: dict[str, tuple[Probe, Turn]]) -> list[str]:
    """The probes whose calls the grammar doesn't accept, character by character."""
    accepting = Machine(forced.text)
    thinking = Machine(forced.in_reasoning) if forced.in_reasoning else None
    wrong = []
    for name, (probe, turn) in found.items():
        if not probe.calls or probe.content:
            continue
        text, machine = turn.text.rstrip(), accepting
        opened = any(turn.prompt.rstrip().endswith(opening.rstrip()) for opening, _ in spec.think)
        if probe.reasoning and not opened:
            opening = next((mark for mark, _ in spec.think if text.lstrip().startswith(mark)), None)
            if opening is None:
                continue  # a forced answer begins with the call
            text, opened = text.lstrip()[len(opening) :], True
        if opened and thinking is not None:
            machine = thinking
        if not machine.accepts(text):
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("path", templates(OWN) + templates(UNKNOWN), ids=lambda path: path.stem)
def test_a_grammar_accepts_the_calls_of_our_own_templates(path: Path) -> None:
    source = path.read_text("utf-8")
    spec = laid_out(source)
    if path.stem in OWN_NOT_LAID_OUT:
        assert spec.layout is None
        return
    forced = grammar(spec, TOOLS)
    assert spec.layout is not None
    assert forced is not None
    assert refused(spec, forced, rendered(source)) == []


@needs_templates
def test_grammars_accept_the_calls_of_the_templates_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    shown = accepted = readable = 0
    wrong: dict[str, Any] = {}
    for path in templates(SHARED):
        source = path.read_text("utf-8")
        try:
            found = rendered(source)
        except NotRendered:
            continue
        spec = laid_out(source)
        forced = grammar(spec, TOOLS)
        tried = {name: pair for name, pair in found.items() if name in SOME and name not in BROKEN.get(path.stem, {})}
        refusing = ["all"] if forced is None or not tried else refused(spec, forced, tried)
        shown, accepted = shown + 1, accepted + (not refusing)
        readable += NOT_FORCED.get(path.stem) != UNREADABLE
        if refusing:
            wrong[path.stem] = refusing
    with capsys.disabled():
        print(f"\nforced grammars accept the own calls of {accepted} of {shown} templates ({readable} are readable)")
        print(*(f"  {name}: {NOT_FORCED.get(name, refusing)}" for name, refusing in wrong.items()), sep="\n")
    assert wrong.keys() == NOT_FORCED.keys()
    assert accepted * 101 >= 97 * readable


CALLS = [ToolCall("call00000", "wxSearch", '{"wxText": "a", "wxMaybe": null}'), ToolCall("call00001", "wxPing", "{}")]
LAYOUTS: dict[str, tuple[dict[str, Any], str]] = {
    "one array, with ids": (
        {
            "like": "mistral",
            "layout": {
                "call": '{"name": "{name}", "arguments": {arguments}, "id": "{id}"}',
                "opening": "[TOOL_CALLS] [",
                "between": ", ",
                "closing": "]",
            },
        },
        '[TOOL_CALLS] [{"name": "wxSearch", "arguments": {"wxText": "a", "wxMaybe": null}, "id": "call00000"}, '
        '{"name": "wxPing", "arguments": {}, "id": "call00001"}]',
    ),
    "several regions, values on lines of their own, Python's words": (
        {
            "like": "qwen3_coder",
            "layout": {
                "call": "<function={name}>\n{arguments}</function>",
                "opening": "<tool_call>\n",
                "between": "\n</tool_call>\n<tool_call>\n",
                "closing": "\n</tool_call>",
                "parameter": "<parameter={key}>\n{value}\n</parameter>\n",
                "spelling": "mixed",
            },
        },
        "<tool_call>\n<function=wxSearch>\n<parameter=wxText>\na\n</parameter>\n<parameter=wxMaybe>\nNone\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=wxPing>\n</function>\n</tool_call>",
    ),
    "counted from 1, compact, sorted, in lines": (
        {
            "like": "hermes",
            "layout": {
                "call": '<tool_call>{"n": {index}, "name": "{name}", "arguments": {arguments}}</tool_call>',
                "between": "\n",
                "behind_several": "\n",
                "comma": ",",
                "colon": ":",
                "sorted": True,
                "first": "1",
            },
        },
        '<tool_call>{"n": 1, "name": "wxSearch", "arguments": {"wxMaybe":null,"wxText":"a"}}</tool_call>\n'
        '<tool_call>{"n": 2, "name": "wxPing", "arguments": {}}</tool_call>\n',
    ),
    "indented": (
        {
            "like": "granite",
            "layout": {
                "call": '{\n        "name": "{name}",\n        "arguments": {arguments}\n    }',
                "opening": "<|tool_call|>[\n    ",
                "between": ",\n    ",
                "closing": "\n]",
                "indent": "    ",
            },
        },
        '<|tool_call|>[\n    {\n        "name": "wxSearch",\n        "arguments": {\n            "wxText": "a",\n'
        '            "wxMaybe": null\n        }\n    },\n    {\n        "name": "wxPing",\n        "arguments": {}\n'
        "    }\n]",
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_says_how_calls_are_written_and_forced(name: str) -> None:
    fields, written = LAYOUTS[name]
    spec = define(fields)
    assert render_calls(spec, CALLS) == written
    forced = grammar(spec, TOOLS)
    assert forced is not None
    assert Machine(forced.text).accepts(written)


def test_what_may_stand_before_calls_and_behind_reasoning() -> None:
    lead, gap = "<think>\n\n</think>\n\n", "<|then|>"
    layout = {"call": '{"name": "{name}", "arguments": {arguments}}', "lead": lead, "gap": gap}
    forced = grammar(define({"like": "hermes", "layout": layout}), TOOLS)
    assert forced is not None
    assert forced.in_reasoning is not None
    call = '{"name": "wxPing", "arguments": {}}'
    accepted = Machine(forced.text)
    assert accepted.accepts(call)
    assert accepted.accepts(lead + call)
    assert not accepted.accepts(f"\n{call}")
    thinking = Machine(forced.in_reasoning)
    assert thinking.accepts(f"So.\n</think>{gap}{call}")
    assert not thinking.accepts(f"So.\n</think>{call}")


def test_a_layout_is_checked() -> None:
    for layout, said in (
        ("x", "needs the fields"),
        ({}, "layout.call: missing"),
        ({"cal": "x"}, "layout.cal: no such"),
    ):
        with pytest.raises(UnknownFormat, match=said):
            define({"like": "hermes", "layout": layout})


def test_without_a_layout_the_other_fields_say_how_calls_are_written() -> None:
    assert layout_of(get("hermes")).opening == "<tool_call>\n"
    assert {field.name for field in fields_of(Layout)} >= {"opening", "between", "closing"}

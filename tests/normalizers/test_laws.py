"""The laws of the architecture on generated answers: any split, nothing lost, never an exception."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normalizers import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolArgs,
    ToolCall,
    ToolEnd,
    ToolStart,
    Warn,
    coalesce,
    fold,
    get,
    names,
    normalizer,
)
from normalizers.write.render import render_calls
from tests.normalizers.splits import run, tool
from tests.support.thorough import examples

FORMATS = [name for name in names() if not get(name).untouched]
TYPES = {"text": "string", "count": "integer", "ratio": "number", "on": "boolean", "tags": "array", "options": "object"}
TOOLS = [tool("files.read", **TYPES), tool("set-mode", **TYPES), tool("ping")]

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "text": st.text(max_size=30),
    "count": st.integers(),
    "ratio": st.floats(allow_nan=False, allow_infinity=False),
    "on": st.booleans(),
    "tags": st.lists(VALUES, max_size=3),
    "options": st.dictionaries(st.text(max_size=6), VALUES, max_size=3),
}
ARGUMENTS = st.fixed_dictionaries({}, optional=BY_TYPE)
CALLS: st.SearchStrategy[list[tuple[str, dict[str, Any]]]] = st.lists(
    st.tuples(st.sampled_from(["files.read", "set-mode"]), ARGUMENTS) | st.just(("ping", {})), min_size=1, max_size=3
)


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    places = sorted({cut % (len(text) + 1) for cut in cuts} | {0, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(places)] or [""]


CUTS = st.lists(st.integers(0, 10_000), max_size=12)


@pytest.mark.parametrize("name", FORMATS)
@given(calls=CALLS, cuts=CUTS)
@settings(max_examples=examples(60))
def test_round_trip(name: str, calls: list[tuple[str, dict[str, Any]]], cuts: list[int]) -> None:
    text = render_calls(get(name), [ToolCall("", tool_name, json.dumps(args)) for tool_name, args in calls])
    message = fold(run(name, pieces_of(text, cuts), TOOLS))
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == calls
    assert message.content.strip() == ""


def fragments(name: str) -> st.SearchStrategy[str]:
    """Text made of the format's own parts, in random order."""
    spec = get(name)
    marks = {*spec.open, *spec.begins, *spec.close, *spec.drop, *(mark for pair in spec.think for mark in pair)}
    sample = render_calls(spec, [ToolCall("", "files.read", '{"text": "a\\"b\'c", "count": 1}')])
    thirds = [sample[:9], sample[9:30], sample[30:], sample[:-3], sample[3:], sample]
    soup = [
        "[",
        "]",
        "{",
        "}",
        "(",
        ")",
        ",",
        ":",
        "=",
        '"',
        "'",
        "\\",
        "\n",
        "```",
        "ping()",
        "[ping()]",
        "x",
        " ",
        "é",
    ]
    soup += ['{"name": "ping"', '"arguments": {', "files.read(", "text='", "it's", "functions.", "**{", "Tool: ping"]
    return st.lists(st.sampled_from([*sorted(marks), *thirds, *soup]), max_size=14).map("".join)


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data(), cuts=CUTS, reason=st.sampled_from(["stop", "length", None]))
@settings(max_examples=examples(120))
def test_any_split_gives_the_same_events(name: str, data: st.DataObject, cuts: list[int], reason: str | None) -> None:
    text = data.draw(fragments(name))
    options = {
        "reasoning_open": data.draw(st.booleans()),
        "unknown_tools": data.draw(st.sampled_from(["refuse", "forward"])),
        "guarded": data.draw(st.booleans()),
    }
    tools = data.draw(st.sampled_from([TOOLS, TOOLS, TOOLS[1:], []]))
    whole = coalesce(run(name, [text], tools, reason=reason, **options))
    for pieces in (pieces_of(text, cuts), list(text)):
        assert coalesce(run(name, pieces, tools, reason=reason, **options)) == whole
    ended = check(whole)
    starts = [event for event in whole if isinstance(event, ToolStart)]
    if not options["guarded"]:
        assert len(starts) == len(ended), "what was said of a call was taken back"
    assert all(not end.cut for end in ended[:-1])
    assert reason == "length" or all(not end.cut for end in ended)
    if options["unknown_tools"] == "refuse":
        assert {start.name for start in starts} <= {each["function"]["name"] for each in tools}


def check(events: list[Event]) -> list[ToolEnd]:
    """Check the events' order and form: indices count up, and a call ends once, with one JSON object or cut."""
    count = 0
    parts: dict[int, list[str]] = {}
    ended: dict[int, ToolEnd] = {}
    ids = [event.id for event in events if isinstance(event, ToolStart)]
    assert len(ids) == len(set(ids))
    for event in events:
        match event:
            case ToolStart(index, _, name):
                assert index == count
                assert name
                count += 1
                parts[index] = []
            case ToolArgs(index, fragment):
                assert index == count - 1
                assert index not in ended
                parts[index].append(fragment)
            case ToolEnd(index, cut):
                assert index not in ended
                ended[index] = event
                assert cut or isinstance(json.loads("".join(parts[index])), dict)
            case TextDelta() | ReasoningDelta() | Warn():
                pass
    return [*ended.values()]


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data(), allow=st.booleans(), parallel=st.booleans())
@settings(max_examples=examples(40))
def test_policies_hold_and_called_is_true_after_a_call(
    name: str, data: st.DataObject, allow: bool, parallel: bool
) -> None:
    text = data.draw(fragments(name))
    parser = normalizer(name, TOOLS, allow_calls=allow, parallel=parallel)
    events = parser.feed(text) + parser.finish("stop")
    calls = fold(events).tool_calls
    assert parser.called == bool(calls)
    assert allow or not calls
    assert parallel or len(calls) <= 1


@pytest.mark.parametrize("name", FORMATS)
@given(text=st.text(alphabet=st.characters(exclude_characters="<[{(:\n`"), max_size=200), cuts=CUTS)
@settings(max_examples=examples(40))
def test_plain_text_passes(name: str, text: str, cuts: list[int]) -> None:
    if any(mark in text for mark in get(name).begins):
        return
    message = fold(run(name, pieces_of(text, cuts), TOOLS))
    assert message.content == text
    assert not message.tool_calls
    assert not message.warnings


def test_untouched_text_is_the_same_object() -> None:
    for name in names():
        parser = normalizer(name, TOOLS)
        parser.feed("Hello")
        text = " world, and so on"
        (event,) = parser.feed(text)
        assert isinstance(event, TextDelta)
        assert event.text is text

"""Calls without marks: as JSON or Python alone, in a fence, in tags that the format doesn't have."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normalizers import Event, FormatSpec, TextDelta, coalesce, fold, get, names, normalizer
from normalizers.write.render import render_calls
from tests.normalizers.splits import parse, tool
from tests.support.thorough import examples

WEATHER = tool("get_weather", ["city"], city="string", days="integer", unit={"enum": ["celsius", "fahrenheit"]})
TOOLS = [WEATHER, tool("get_weather_map", zoom="number"), tool("ping"), tool("add", ["a", "b"], a="number", b="number")]
CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
ADD = '{"name": "add", "arguments": {"a": -3, "b": 4.5}}'
PARIS = ("get_weather", {"city": "Paris"})
SUM = ("add", {"a": -3, "b": 4.5})
JSON_FORMATS = ("hermes", "llama3_json", "granite", "granite_20b_fc", "phi4", "auto", "native_json")
OTHERS = ("pythonic", "llama4_pythonic", "mistral", "deepseek_v31", "kimi_k2", "qwen3_coder", "glm45", "minimax_m2")

Calls = list[tuple[str, Any]]


def read(spec: FormatSpec | str, pieces: list[str], **options: Any) -> tuple[list[Event], bool]:
    reader = normalizer(spec, TOOLS, ids=lambda: "id", **options)
    events = [event for piece in pieces for event in reader.feed(piece)]
    return coalesce(events + reader.finish("stop")), reader.unmarked


def calls_of(spec: FormatSpec | str, text: str, **options: Any) -> tuple[Calls, str, str]:
    """The calls, the content and the reasoning; the same whole, character by character and in every two pieces."""
    whole = read(spec, [text], **options)
    cuts = [list(text), *([text[:at], text[at:]] for at in range(1, len(text)))]
    for pieces in cuts:
        assert read(spec, pieces, **options) == whole, pieces
    message = fold(whole[0])
    assert whole[1] == bool(message.tool_calls)
    return [(c.name, json.loads(c.arguments)) for c in message.tool_calls], message.content, message.reasoning


READ: dict[str, tuple[str, Calls, str]] = {
    # text, calls, content
    "bare": (CALL, [PARIS], ""),
    "bare, numbers": (ADD, [SUM], ""),
    "white space around": (f"\n\n {CALL}\n", [PARIS], ""),
    "pretty-printed": (json.dumps(json.loads(CALL), indent=2), [PARIS], ""),
    "parameters": ('{"name": "get_weather", "parameters": {"city": "Paris"}}', [PARIS], ""),
    "tool, args": ('{"tool": "get_weather", "args": {"city": "Paris"}}', [PARIS], ""),
    "tool_name, input": ('{"tool_name": "get_weather", "input": {"city": "Paris"}}', [PARIS], ""),
    "within function": (f'{{"function": {CALL}}}', [PARIS], ""),
    "type and function": (f'{{"type": "function", "function": {CALL}}}', [PARIS], ""),
    "function is the name": ('{"function": "get_weather", "arguments": {"city": "Paris"}}', [PARIS], ""),
    "an id": ('{"id": "call_1", "name": "get_weather", "arguments": {"city": "Paris"}}', [PARIS], ""),
    "arguments first": ('{"arguments": {"city": "Paris"}, "name": "get_weather"}', [PARIS], ""),
    "arguments as a string": (
        '{"arguments": "{\\"city\\": \\"Paris\\"}", "name": "get_weather"}',
        [PARIS],
        "",
    ),
    "no arguments needed": ('{"name": "ping"}', [("ping", {})], ""),
    "empty arguments": ('{"name": "ping", "arguments": {}}', [("ping", {})], ""),
    "coerced": (
        '{"name": "get_weather", "arguments": {"city": "Paris", "days": "3"}}',
        [("get_weather", {"city": "Paris", "days": 3})],
        "",
    ),
    "Python's spelling": ("{'name': 'get_weather', 'arguments': {'city': 'Paris'}}", [PARIS], ""),
    "two on two lines": (f"{CALL}\n{ADD}", [PARIS, SUM], ""),
    "two on one line": (f"{CALL} {ADD}", [PARIS, SUM], ""),
    "two with a comma": (f"{CALL}, {ADD}", [PARIS, SUM], ""),
    "two with a semicolon": (f"{CALL}; {ADD}", [PARIS, SUM], ""),
    "a list": (f"[{CALL}, {ADD}]", [PARIS, SUM], ""),
    "a list of one": (f"[\n  {CALL}\n]", [PARIS], ""),
    "a fence": (f"```json\n{CALL}\n```", [PARIS], ""),
    "a fence without a word": (f"```\n{CALL}\n```", [PARIS], ""),
    "a fence with another word": (f"```tool_call\n{CALL}\n```", [PARIS], ""),
    "a fence on one line": (f"```json {CALL} ```", [PARIS], ""),
    "a fence without an end": (f"```json\n{CALL}", [PARIS], ""),
    "a fence of tildes": (f"~~~json\n{CALL}\n~~~", [PARIS], ""),
    "a longer fence": (f"````json\n{CALL}\n````", [PARIS], ""),
    "prose before a fence of tildes": (f"Sure:\n~~~\n{CALL}\n~~~\n", [PARIS], "Sure:\n"),
    "a word in braces": (f"```{{.json}}\n{CALL}\n```", [PARIS], ""),
    "words in braces": (f'```json {{title="a" .x}}\n{CALL}\n```', [PARIS], ""),
    "a word in brackets": (f"```[json]\n{CALL}\n```", [PARIS], ""),
    "a long word": (f"```{'x' * 100}\n{CALL}\n```", [PARIS], ""),
    "two in a fence": (f"```json\n{CALL}\n{ADD}\n```", [PARIS, SUM], ""),
    "a list in a fence": (f"```json\n[{CALL}, {ADD}]\n```", [PARIS, SUM], ""),
    "two fences": (f"```json\n{CALL}\n```\n\n```json\n{ADD}\n```\n", [PARIS, SUM], ""),
    "function_call tags": (f"<function_call>\n{CALL}\n</function_call>", [PARIS], ""),
    "tools tags": (f"<tools>{CALL}</tools>", [PARIS], ""),
    "tools tags without an end": (f"<tools>\n{CALL}", [PARIS], ""),
    "tags in a fence": (f"```xml\n<tools>\n{CALL}\n</tools>\n```", [PARIS], ""),
    "the format's own tags in a fence": (f"```xml\n<tool_call>\n{CALL}\n</tool_call>\n```", [PARIS], ""),
    "such tags on a line in tildes": (f"~~~\n<tool_call>{CALL}</tool_call>\n~~~", [PARIS], ""),
    "prose before such tags": (f"Sure:\n```\n<tool_call>{CALL}</tool_call>\n```\n", [PARIS], "Sure:\n"),
    "a fence that a longer one ends": (f"```json\n{CALL}\n`````", [PARIS], ""),
    "prose before a fence": (f"Sure, I will look.\n```json\n{CALL}\n```", [PARIS], "Sure, I will look.\n"),
    "prose and an empty line before a fence": (f"Sure:\n\n```json\n{CALL}\n```\n", [PARIS], "Sure:\n\n"),
    "other code before the fence": (
        f"```python\nprint(1)\n```\nNow:\n```json\n{CALL}\n```",
        [PARIS],
        "```python\nprint(1)\n```\nNow:\n",
    ),
    "an invented result": (f'{CALL}\n{{"temp_c": 21}}', [PARIS], '\n{"temp_c": 21}'),
    "an invented result in a list": (f"{CALL}\n[1, 2]", [PARIS], "\n[1, 2]"),
    "an invented result with a name": (
        f'{CALL}\n{{"name": "Paris", "temp_c": 21}}',
        [PARIS],
        '\n{"name": "Paris", "temp_c": 21}',
    ),
    "an invented result, then words": (f'{CALL}\n{{"temp_c": 21}}\nIt is 21.', [PARIS], '\n{"temp_c": 21}\nIt is 21.'),
    "a brace in a value": (
        '{"name": "get_weather", "arguments": {"city": "}{"}}',
        [("get_weather", {"city": "}{"})],
        "",
    ),
    "a fence in a value": (
        '{"name": "get_weather", "arguments": {"city": "```"}}',
        [("get_weather", {"city": "```"})],
        "",
    ),
}

TEXT: dict[str, str] = {
    "an undeclared name": '{"name": "hello", "arguments": {}}',
    "the beginning of a declared name": '{"name": "get_weath", "arguments": {"city": "Paris"}}',
    "a longer name": '{"name": "get_weather_now", "arguments": {"city": "Paris"}}',
    "one of two is undeclared": f'{CALL}\n{{"name": "rm", "arguments": {{}}}}',
    "a missing argument": '{"name": "get_weather", "arguments": {"days": 3}}',
    "no arguments, though one is needed": '{"name": "get_weather"}',
    "an argument of another type": '{"name": "get_weather", "arguments": {"city": ["Paris"]}}',
    "a value that isn't listed": '{"name": "get_weather", "arguments": {"city": "Paris", "unit": "kelvin"}}',
    "arguments that are no object": '{"name": "ping", "arguments": [1]}',
    "another key": '{"name": "get_weather", "arguments": {"city": "Paris"}, "note": "x"}',
    "a declaration": '{"name": "get_weather", "description": "tells the weather", "parameters": {}}',
    "a declaration with a schema": ('{"name": "ping", "parameters": {"type": "object", "properties": {}}}'),
    "a record": '{"name": "Ada", "age": 36}',
    "a JSON answer": '{"city": "Paris", "temp_c": 21}',
    "numbers": "[1, 2, 3]",
    "a call within JSON": f'{{"call": {CALL}}}',
    "a call in a list of other things": f"[{CALL}, 1]",
    "in a sentence": f"The weather tool is called like {CALL}, see docs.",
    "at the end of a sentence": f"You call it like {CALL}",
    "on a line of its own behind prose": f"You call it like this:\n{CALL}",
    "before prose": f"{CALL}\nThis is how it is called.",
    "in back-ticks": f"`{CALL}`",
    "in back-ticks in a sentence": f"Write `{CALL}` and wait.",
    "a fence before prose": f"```json\n{CALL}\n```\nThis is how it is called.",
    "tags in a fence before prose": f"```xml\n<tool_call>\n{CALL}\n</tool_call>\n```\nThis is how it is called.",
    "a fence within prose": f"For example:\n```json\n{CALL}\n```\nThen wait.",
    "a fence with a comment": f"```js\n// the call\n{CALL}\n```",
    "a fence that isn't at the start of a line": f"Like ```{CALL}```",
    "a fence in a fence": f"````md\n```json\n{CALL}\n```\n````",
    "a fence in a fence of tildes": f"~~~md\n```json\n{CALL}\n```\n~~~",
    "tildes in a fence": f"````md\n~~~json\n{CALL}\n~~~\n````",
    "tildes before prose": f"~~~json\n{CALL}\n~~~\nThis is how it is called.",
    "tildes that aren't at the start of a line": f"Like ~~~{CALL}~~~",
    "a fence that a shorter one ends": f"````json\n{CALL}\n```",
    "a list item": f"- {CALL}\n- {ADD}",
    "a table": f"| call |\n|---|\n| {CALL} |",
    "a quotation": f"> {CALL}",
    "code": f"payload = {CALL}",
    "unfinished": '{"name": "get_weather", "arguments": {"city": "Par',
    "a tag that is none": f"<div>{CALL}</div>",
    "a Markdown link": "[get_weather](http://x) tells the weather.",
    "an empty list": "[]",
    "a lone bracket": "{",
    "a lone fence": "```",
}


MARKED = {("granite_20b_fc", "function_call tags"), ("auto", "function_call tags")}
"""The tags are marks of a format there."""
TAUGHT = {("llama3_json", "before prose"), ("llama3_json", "on a line of its own behind prose")}
"""The format's models are taught to write calls so: see `FormatSpec.inline`."""


def pairs(forms: Iterable[str], but: set[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, form) for name in JSON_FORMATS for form in forms if (name, form) not in but]


@pytest.mark.some(2)
@pytest.mark.parametrize(("name", "form"), pairs(READ, MARKED))
def test_calls_alone_are_calls(name: str, form: str) -> None:
    text, calls, content = READ[form]
    assert calls_of(name, text) == (calls, content, "")


@pytest.mark.parametrize(("name", "form"), pairs(TEXT, TAUGHT))
def test_anything_else_stays_text(name: str, form: str) -> None:
    text = TEXT[form]
    assert calls_of(name, text) == ([], text, "")


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize(
    "form",
    ["bare", "a list", "a fence", "the format's own tags in a fence", "prose before a fence", "an invented result"],
)
def test_other_formats_read_them_too(name: str, form: str) -> None:
    text, calls, content = READ[form]
    assert calls_of(name, text) == (calls, content, "")


@pytest.mark.parametrize("name", [name for name in names() if get(name).think])
def test_after_reasoning(name: str) -> None:
    opening, closing = get(name).think[0]
    text = f"{opening}\nhm\n{closing}\n\n{CALL}"
    assert calls_of(name, text) == ([PARIS], "", "hm")
    assert calls_of(name, text.removeprefix(opening), reasoning_open=True) == ([PARIS], "", "hm")
    assert calls_of(name, f"{opening}\n{CALL}\n{closing}\n\nHello") == ([], "Hello", CALL)


@pytest.mark.parametrize("name", JSON_FORMATS)
def test_the_policy_says_where(name: str) -> None:
    spec = get(name)
    fenced, result = READ["prose before a fence"][0], READ["an invented result"][0]
    never, alone = replace(spec, unmarked="never"), replace(spec, unmarked="alone", inline=False)
    for text in (CALL, fenced, result):
        assert calls_of(never, text) == ([], text, "")
    assert calls_of(alone, CALL) == ([PARIS], "", "")
    for text in (fenced, result):
        assert calls_of(alone, text) == ([], text, "")


@pytest.mark.parametrize("name", JSON_FORMATS)
def test_without_tools_or_with_none_to_call_all_is_text(name: str) -> None:
    reader = normalizer(name, ())
    assert coalesce(reader.feed(CALL) + reader.finish("stop")) == [TextDelta(CALL)]
    assert calls_of(name, CALL, allow_calls=False) == ([], CALL, "")


def test_one_call_alone_without_parallel_calls() -> None:
    events, _ = read("hermes", [f"{CALL}\n{ADD}"], parallel=False)
    message = fold(events)
    assert [call.name for call in message.tool_calls] == ["get_weather"]
    assert [warning.code for warning in message.warnings] == ["parallel_call_dropped"]


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_a_cut_answer_is_text(reason: str) -> None:
    for size in range(1, len(CALL)):
        reader = normalizer("hermes", TOOLS)
        assert coalesce(reader.feed(CALL[:size]) + reader.finish(reason)) == [TextDelta(CALL[:size])]


PYTHON: dict[str, tuple[str, Calls, str]] = {
    "a call": ('get_weather(city="Paris")', [PARIS], ""),
    "a list": ('[get_weather(city="Paris"), add(a=-3, b=4.5)]', [PARIS, SUM], ""),
    "two lines": ('get_weather(city="Paris")\nadd(a=-3, b=4.5)', [PARIS, SUM], ""),
    "in a sentence": ('Call get_weather(city="Paris") first.', [], 'Call get_weather(city="Paris") first.'),
    "before prose": ('get_weather(city="Paris") tells it.', [], 'get_weather(city="Paris") tells it.'),
    "a missing argument": ("get_weather(days=3)", [], "get_weather(days=3)"),
    "an undeclared name": ("rm(path='/')", [], "rm(path='/')"),
    "in a fence": ("```python\nping()\n```", [], "```python\nping()\n```"),
}


@pytest.mark.parametrize("form", PYTHON)
@pytest.mark.parametrize("name", ["pythonic", "auto"])
def test_calls_in_python(name: str, form: str) -> None:
    text, calls, content = PYTHON[form]
    assert calls_of(name, text) == (calls, content, "")


FIRST = {
    "prose": "The weather in Paris is fine.",
    "a JSON answer": '{"city": "Paris", "temp_c": 21, "wind": "none"}',
    "a record": '{"name": "Ada", "age": 36}',
    "a list": "[1, 2, 3, 4, 5, 6, 7, 8]",
    "Markdown": "# Weather\n\nIt is **fine** in Paris.",
    "a link": "[Paris](https://x.test) is a city of France.",
    "a tag": "<p>The weather in Paris is fine.</p>",
    "code": "```python\nprint('the weather in Paris')\n```",
    "a quotation": '"Fine", he said about the weather.',
}


@pytest.mark.parametrize("form", FIRST)
@pytest.mark.parametrize("name", JSON_FORMATS)
def test_other_text_is_hardly_held_back(name: str, form: str) -> None:
    """Text leaves once it can't become a call. A fence is held up to its first character of code."""
    text = FIRST[form]
    reader = normalizer(name, TOOLS)
    allowed = 13 if form == "code" else 10 if form == "a record" else 8
    sent, longest = 0, 0
    for at, char in enumerate(text):
        sent += len(fold(reader.feed(char)).content)
        longest = max(longest, at + 1 - sent)
    assert longest <= allowed


@given(
    name=st.sampled_from([*JSON_FORMATS, *OTHERS]),
    parts=st.lists(
        st.sampled_from(
            [
                *(CALL, ADD, '{"x": 1}', "[", "]", "{", "}", ",", "\n", " ", "```", "```json\n", "\n```", "text", "`"),
                "<tools>",
                "</tools>",
                "<tool_call>",
                "</tool_call>",
                '{"name": "',
                'ping"',
                "ping()",
                "<think>",
                "</think>",
            ]
        ),
        max_size=8,
    ),
    data=st.data(),
)
def test_any_split_gives_the_same_events_and_nothing_is_lost(name: str, parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    whole = read(name, [text])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(name, pieces) == whole
    assert read(name, list(text)) == whole


@pytest.mark.parametrize("name", [name for name in names() if get(name).open or get(name).begins])
def test_a_call_with_marks_is_not_unmarked(name: str) -> None:
    spec = get(name)
    reader = normalizer(spec, TOOLS)
    fold(reader.feed(render_calls(spec, [{"name": "ping", "arguments": "{}"}])) + reader.finish("stop"))
    assert reader.called
    assert not reader.unmarked


@pytest.mark.parametrize("name", [name for name in names() if get(name).think and get(name).open])
def test_a_back_tick_that_ends_the_reasoning_quotes_no_call_behind_it(name: str) -> None:
    spec = get(name)
    opening, closing = spec.think[0]
    written = render_calls(spec, [{"name": "ping", "arguments": "{}"}])
    for thought in ("see `ping`", "```", "`"):
        text = f"{opening}{thought}{closing}{written}"
        whole = read(name, [text])
        assert [call.name for call in fold(whole[0]).tool_calls] == ["ping"]
        for pieces in (list(text), *([text[:at], text[at:]] for at in range(1, len(text)))):
            assert read(name, pieces) == whole


NAMES = ["get_weather", "größe", "get weather", 'a"b', "a\\b", "it's", "工具", "👍", "f'"]


@st.composite
def written_names(draw: st.DrawFn) -> tuple[str, str]:
    """A name, and JSON of it with blanks around it and escapes of any of its characters."""
    name = draw(st.sampled_from(NAMES))
    before, after = draw(st.text(" \t\n", max_size=3)), draw(st.text(" \t\n", max_size=3))
    written = ""
    for char in before + name + after:
        units = char.encode("utf-16-be").hex()
        escaped = "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
        written += draw(st.sampled_from([json.dumps(char, ensure_ascii=False)[1:-1], escaped]))
    return name, f'"{written}"'


@pytest.mark.parametrize("name", [*JSON_FORMATS, *OTHERS])
@given(written=written_names(), key=st.sampled_from(["name", "tool"]))
@settings(max_examples=examples(20))
def test_a_name_is_read_however_json_spells_it_and_however_it_is_cut(
    name: str, written: tuple[str, str], key: str
) -> None:
    tools = [tool(written[0], city="string"), tool("other")]
    message = parse(name, f'{{"{key}": {written[1]}, "arguments": {{"city": "x"}}}}', tools, cuts=True)
    assert [(call.name, call.arguments) for call in message.tool_calls] == [(written[0], '{"city": "x"}')]

"""An answer that begins as a call without marks goes on as nothing but calls that fit; any other text is free."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import pytest

from normalizers import Event, coalesce, fold, normalizer, registry
from normalizers.events import ToolArgs, ToolStart
from normalizers.read import ARGUMENT_KEYS, BEGINNING
from normalizers.values.loose_json import read_loosely
from normalizers.write.grammar import Notation, guarded
from tests.normalizers.gbnf import Machine
from tests.normalizers.guards import GUARDS, TEXTS, TOOLS, Json, many, matcher, sampled
from tests.support.bare_objects import objects

FORMATS = [name for name, guard in GUARDS.items() if guard is not None]
NOTATIONS: tuple[Notation, ...] = ("gbnf", "lark")
NAMES = {tool["name"] for tool in TOOLS}


@cache
def grammar(format: str, notation: Notation, calls: int = 8) -> str:
    guard = guarded(registry.get(format), TOOLS, calls=calls, notation=notation)
    assert guard is not None
    assert guard.unmarked
    return guard.text


@cache
def acceptor(text: str, notation: Notation) -> Callable[[str], bool]:
    if notation == "gbnf":
        return Machine(text).accepts
    begin = matcher(text)

    def accepts(text: str) -> bool:
        matching = begin()
        return bool(matching.consume_tokens(list(text.encode())) and matching.is_accepting())

    return accepts


def call(name: str = "get_weather", key: str = "arguments", **arguments: Any) -> str:
    return json.dumps({"name": name, key: arguments or {"city": "Rome"}}, ensure_ascii=False)


ONE = call()
NOW = '{"name": "now", "arguments": {}}'
BOOK = '{"name": "book", "arguments": {"title": "Ulysses", "days": 3}}'

FREE = [
    "",
    " \n",
    "Rome is warm.",
    '{"name": "Bob", "age": 3}',
    '{"city": "Rome"}',
    "{}",
    "{",
    "[1, 2]",
    "[]",
    "[[",
    '["get_weather"]',
    '"get_weather"',
    '```json\n{"city": "Rome"}\n```',
    "```python\nprint(1)\n```\nThat was it.",
    "``` not a fence",
    "`x`",
    '{"name": "get_weath"} is a part of it.',
    '{"name": "get_weather_now", "arguments": {}} is no tool.',
    '{"name": "get_weather',
    '{"name": "Get_weather"}',
    '{"name": "get weather"}',
    '{"name": "nów"}',
    '{"name": "no',
    '{"name": now}',
    '{"name": ["now"]}',
    '{"name": {"first": "now"}}',
    '{"names": "now"}',
    '{"title": "book", "pages": 3}',
    '{"tool_names": ["now"]}',
    '{"tool_name": null}',
    '{"arguments": {"city": "Rome"}, "name": "get_weather"}?',
    '{"type": "object", "name": "now"}',
    '{"type": "function"}',
    '{"type": "function", "x": 1}',
    '{"function": "now"}',
    '{"function": {"names": "now"}}',
    '{"Name": "now"}',
    "{'name': 'now'} in Python",
    '{name: "now"}',
    'x{"name": "now"} y',
    'See: {"name": "get_weather", "arguments": {}}, and so on.',
    '- {"name": "now"}',
    '[{"city": "Rome"}, {"name": "now"}]',
    '[[{"name": "now"}]]',
    '```\n```\n{"name": "now"} x',
    '```json {"name": "now"} x',
    "漢字 é \U0001f600",
    '{"name": "漢字"}',
]

CALLS = [
    ONE,
    NOW,
    BOOK,
    f" \n{ONE}\n",
    f"[{ONE}]",
    f"[\n  {NOW}\n]\n",
    f"```json\n{ONE}\n```",
    f"```\n{ONE}```",
    f"```tool_call\r\n{ONE}\r\n```\n",
    f"``` json\n[{NOW}]\n```",
    json.dumps(json.loads(ONE), indent=2),
    json.dumps([json.loads(ONE)], indent=4),
    ONE.replace(" ", ""),
    ONE.replace("name", "tool").replace("arguments", "args"),
    ONE.replace("name", "tool_name").replace("arguments", "parameters"),
    f'{{"type": "function", "function": {ONE}}}',
    f'{{"function": {ONE}}}',
    f'{{"type": "function", {ONE[1:]}',
    f'{ONE}\n{{"temp_c": 21}}',
    f'```json\n{ONE}\n```\n{{"temp_c": 21, "in": ["Rome"]}}',
    call(days=3, city='é 漢 \U0001f600 "quoted" \\ </x> [y]', unit="celsius"),
    call("save.all", items=[1, 2.5, None], options={"a": [1]}, flag=True, either="x", any=None),
]

SEVERAL = [
    f"{ONE}\n{NOW}",
    f"{ONE}{ONE}{BOOK}",
    f"{ONE},\n{NOW}",
    f"{ONE};{NOW}",
    f"[{ONE}, {NOW}]",
    f"[{ONE},\n {NOW},\n {BOOK}]",
    f"```json\n{ONE}\n{NOW}\n```",
    f'{ONE}\n{NOW}\n{{"temp_c": 21}}',
]

REFUSED = [
    call("get_weather", days=3),
    call("get_weather", city=3),
    call("get_weather", city="Rome", days="three"),
    call("get_weather", city="Rome", unit="kelvin"),
    call("get_weather", city="Rome", zone="UTC"),
    '{"name": "get_weather", "arguments": {}}',
    '{"name": "get_weather", "arguments": "Rome"}',
    '{"name": "get_weather", "arguments": null}',
    '{"name": "get_weather"}',
    '{"name": "get_weather", "city": "Rome"}',
    '{"name": "get_weather", "description": "The weather."}',
    '{"name": "now"}',
    '{"name": "now" ',
    '{"name": "now", "arguments": {}',
    '```\n{"name": "now", "arguments": {}}',
    '[{"name": "now", "arguments": {}}',
    '[{"name": "now", "arguments": {}}}',
    '{"name": "now", "arguments": {}}]',
    '{"function": {"name": "now", "arguments": {}}',
    '{"name": "now", "arguments": {}}}',
    '{"name": "book", "arguments": {"title": "Much too long", "days": 3}}',
    '{"name": "book", "arguments": {"title": "Ulysses", "days": 30}}',
    '{"name": "book", "arguments": {"title": "Ulysses"}}',
    f"{ONE} is the call.",
    f"{ONE}\n\nThis is the call.",
    f"[{ONE}] and more",
    f"```json\n{ONE}\n```\nThis is the call.",
    f"```json\n{ONE}\nprose\n```",
    f'{ONE}\n{{"name": "Bob"}}',
    f'{ONE}\n{{"name": "get_weather", "arguments": {{}}}}',
    f'{ONE}\n{{"temp_c": 21}} degrees',
    f"{ONE}\n[1]",
    f"[{ONE}, 1]",
    f'{ONE}, {{"temp_c": 21}}',
    f'{ONE}\n{{"id": 1, "name": "Bob"}}',
    f'```json\n{ONE}\n{{"temp_c": 21}}\n```',
]


@pytest.mark.parametrize("notation", NOTATIONS)
@pytest.mark.parametrize("format", FORMATS)
def test_what_begins_no_call_is_free(format: str, notation: Notation) -> None:
    accepts = acceptor(grammar(format, notation), notation)
    assert [text for text in FREE if not accepts(text)] == []
    assert [text for text in FREE if not accepts(text + "\nSo much.")] == []


@pytest.mark.parametrize("notation", NOTATIONS)
@pytest.mark.parametrize("format", FORMATS)
def test_calls_without_marks_are_allowed(format: str, notation: Notation) -> None:
    accepts = acceptor(grammar(format, notation), notation)
    assert [text for text in (*CALLS, *SEVERAL) if not accepts(text)] == []
    accepts = acceptor(grammar(format, notation, 1), notation)
    assert [text for text in CALLS if not accepts(text)] == []
    assert [text for text in SEVERAL if accepts(text)] == []


@pytest.mark.parametrize("notation", NOTATIONS)
@pytest.mark.parametrize("format", FORMATS)
def test_what_begins_a_call_is_nothing_else(format: str, notation: Notation) -> None:
    for calls in (1, 8):
        accepts = acceptor(grammar(format, notation, calls), notation)
        assert [text for text in REFUSED if accepts(text)] == []


@pytest.mark.parametrize("notation", NOTATIONS)
@pytest.mark.parametrize("format", [name for name in FORMATS if registry.get(name).think])
def test_the_content_behind_reasoning_is_guarded_too(format: str, notation: Notation) -> None:
    spec = registry.get(format)
    guard = guarded(spec, TOOLS, notation=notation)
    assert guard is not None
    accepts, inside = acceptor(guard.text, notation), acceptor(guard.in_reasoning or "", notation)
    for number, (opening, closing) in enumerate(spec.think):
        for text, good in ((ONE, True), ('{"a": 1} x', True), (REFUSED[0], False), (f"{ONE} x", False)):
            assert accepts(f"{opening}Hm, {ONE} so.{closing}\n{text}") is good
            assert accepts(f"\n{opening}{closing}{opening}a{closing}{text}") is good
            if number == 0:
                assert inside(f"Hm, {ONE} so.{closing}\n{text}") is good
            # Content comes first, so this isn't the answer's start.
            assert accepts(f"Well. {opening}a{closing}{text}")


def within(value: Any, schema: Json) -> bool:
    """Whether the value has one of the schema's types."""
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    wanted = schema.get("type", kinds[type(value)] if value is not None else "null")
    kind = "null" if value is None else kinds[type(value)]
    return kind in wanted or (kind == "integer" and "number" in wanted)


def check_calls(text: str) -> int:
    """The number of the text's calls; each fits its tool."""
    count = 0
    for value in objects(text):
        call = value.get("function", value)
        keys = {"name", "tool", "tool_name"} & call.keys()
        if not keys:
            # What the model takes for the result.
            assert value == objects(text)[-1]
            break
        name = call[keys.pop()]
        (arguments,) = (each for key, each in call.items() if key in ARGUMENT_KEYS)
        parameters = next(tool for tool in TOOLS if tool["name"] == name)["parameters"]
        assert {*parameters.get("required", ())} <= arguments.keys()
        assert all(within(each, parameters.get("properties", {}).get(key, {})) for key, each in arguments.items())
        count += 1
    return count


STARTS = [
    f"{before}{listed}{{{nested}{name}"
    for before in ("", "\n", "```json\n")
    for listed in ("", "[ ")
    for nested in ("", '"function":{')
    for name in ('"name": "get_weather"', '"tool":"now"', ' "name":"save.all"', '"tool_name" : "book"')
]


@pytest.mark.parametrize("notation", NOTATIONS)
@pytest.mark.parametrize("format", FORMATS)
def test_every_text_that_begins_a_call_is_calls(format: str, notation: Notation) -> None:
    text = grammar(format, notation)
    machine = Machine(text) if notation == "gbnf" else None
    begin = matcher(text) if notation == "lark" else None
    for seed in range(TEXTS):
        random = Random(f"{format}{seed}")
        start, size = random.choice(STARTS), random.choice([5, 40, 150])
        assert BEGINNING.match(start)
        if machine is not None:
            made = machine.made_up(random, start, size)
        else:
            assert begin is not None
            made = sampled(begin(), random, start, size, ('"', "'", "}", "]", "```", '":'))
        assert check_calls(made) >= 1, made


@pytest.mark.parametrize("format", FORMATS)
def test_the_grammar_of_many_tools_stays_small(format: str) -> None:
    """Unmarked calls share the rules of marked ones."""
    tools = many(20)
    for tool in tools:
        tool["parameters"]["required"] = ["key_1", "key_4"]
    guard = guarded(registry.get(format), tools)
    assert guard is not None
    assert guard.unmarked
    assert len(guard.text) <= 50_000


def test_long_names_make_no_deep_expressions() -> None:
    tools = [{"name": "a" * 1000, "parameters": {}}, {"name": "b/\"é'\\", "parameters": {}}]
    guard = guarded(registry.get("auto"), tools)
    assert guard is not None
    depth = max_depth = 0
    for char in re.sub(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]', "", guard.text):
        depth += (char == "(") - (char == ")")
        max_depth = max(depth, max_depth)
    assert max_depth < 64
    accepts = acceptor(guard.text, "gbnf")
    for tool in tools:
        beginning = '{"name": ' + json.dumps(tool["name"], ensure_ascii=False)
        assert accepts(beginning + ', "arguments": {}}')
        assert accepts(beginning[:-1])
        assert not accepts(beginning)


def test_names_that_no_reader_can_tell_are_free() -> None:
    tools: list[Json] = [{"name": name, "parameters": {}} for name in (" now", "", "functools.wraps")]
    assert guarded(registry.get("hermes"), tools[:2]) is not None
    for format, tool in (("hermes", tools[0]), ("hermes", tools[1]), ("phi4", {**tools[2], "strict": True})):
        guard = guarded(registry.get(format), [tool])
        assert guard is not None
        assert not guard.unmarked


SPLITS = 2


def heard(format: str, pieces: list[str], reason: str = "stop", *, guard: bool = True) -> list[Event]:
    """The events of an answer that comes in these pieces; ids are left out."""
    reader = normalizer(registry.get(format), TOOLS, ids=lambda: "id", unmarked_guarded=guard)
    events = [event for piece in pieces for event in reader.feed(piece)]
    return coalesce([*events, *reader.finish(reason)])


def cut_up(text: str, random: Random) -> list[str]:
    at = sorted({random.randint(0, len(text)) for _ in range(random.randint(1, 12))})
    return [text[low:high] for low, high in zip([0, *at], [*at, len(text)], strict=True)]


@pytest.mark.parametrize("format", FORMATS)
def test_every_answer_of_the_grammar_is_the_same_whole_and_streamed(format: str) -> None:
    machine = Machine(grammar(format, "gbnf"))
    for seed in range(TEXTS):
        random = Random(f"{format}{seed}")
        text = machine.made_up(random, random.choice([*STARTS, "", "{", "["]), random.choice([5, 40, 150]))
        whole = heard(format, [text])
        assert heard(format, list(text)) == whole, text
        for _ in range(SPLITS):
            assert heard(format, cut_up(text, random)) == whole, text
        said = fold(whole)
        if text.startswith(tuple(STARTS)):
            assert len(said.tool_calls) == check_calls(text), text
            assert {call.name for call in said.tool_calls} <= NAMES
            assert not said.warnings
            assert not said.content or "name" not in json.loads(read_loosely(said.content) or "")
        # Cut anywhere, it keeps what was sent.
        cut = text[: random.randint(0, len(text))]
        assert heard(format, list(cut), "length") == heard(format, [cut], "length"), cut


@pytest.mark.some(3)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("text", [*CALLS, *SEVERAL])
def test_a_guarded_call_leaves_from_its_name_on(format: str, text: str) -> None:
    events = heard(format, list(text))
    assert events == heard(format, list(text), guard=False)
    reader = normalizer(registry.get(format), TOOLS, unmarked_guarded=True)
    sent = 0
    for at, char in enumerate(text):
        kinds = [type(event) for event in reader.feed(char)]
        sent += ToolArgs in kinds
        if ToolStart in kinds and not sent:
            assert re.search(r'"(get_weather|now|save.all|book)"', text[: at + 1])
    assert reader.unmarked
    assert sent > 1 or "now" in text or "{}" in text


@pytest.mark.parametrize("format", FORMATS)
def test_free_text_is_read_as_without_a_guard(format: str) -> None:
    for text in FREE:
        for reason in ("stop", "length"):
            assert heard(format, list(text), reason) == heard(format, [text], reason, guard=False), text

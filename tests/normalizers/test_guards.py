"""Whatever a guard's grammar accepts behind a mark, our reader reads as one call, in both notations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from normalizers import FormatSpec, fold, normalizer, registry
from normalizers.events import ToolCall
from normalizers.spec import TagSyntax
from normalizers.write.grammar import MAX_GUARD, guarded
from normalizers.write.render import render_calls
from tests.normalizers.gbnf import Machine
from tests.normalizers.guards import GUARDS, TEXTS, TOOLS, Json, many, matcher, sampled

NAMES = {tool["name"] for tool in TOOLS}
GUARDED = [name for name, guard in GUARDS.items() if guard is not None and guard.marked]


def test_the_formats_with_a_guard() -> None:
    without = {name for name, guard in GUARDS.items() if guard is None}
    # The engine reads the calls; a channel's mark comes first; the prompt writes the first mark.
    assert without == {"native_json", "harmony", "muse_glimmer", "inkling", "functionary_v32", "gemma4"}
    unmarked = {"functiongemma", "tool_lines", "auto", "llama4_json", "minimax_m3"}
    assert {name for name in registry.names() if name not in GUARDED} == without | unmarked
    # Its mark is a word of prose, which only a strict tool is worth.
    phi4 = guarded(registry.get("phi4"), TOOLS[:3])
    assert phi4 is not None
    assert not phi4.marked


def read_once(spec: FormatSpec, text: str) -> None:
    """The text holds one call, which fits what the guard promises."""
    reader = normalizer(spec, TOOLS)
    said = fold([*reader.feed(text), *reader.finish("stop")])
    ((name, arguments),) = [(call.name, json.loads(call.arguments)) for call in said.tool_calls]
    assert name in NAMES
    if name == "book":
        assert len(arguments["title"]) <= 9
        assert arguments["days"] <= 9
    assert not {warning.code for warning in said.warnings} - {"stray_marker", "echo_dropped"}


@pytest.mark.parametrize("format", GUARDED)
def test_every_text_of_the_grammar_is_read(format: str) -> None:
    spec = registry.get(format)
    guard = guarded(spec, TOOLS, calls=1)
    assert guard is not None
    machine = Machine(guard.text)
    for mark in (*spec.open, *spec.begins):
        for seed in range(TEXTS):
            random = Random(seed)
            text = machine.made_up(random, "Well: " + mark, random.choice([5, 40, 150]))
            read_once(spec, text)


@pytest.mark.parametrize("format", GUARDED)
def test_every_text_of_the_grammar_in_lark_is_read(format: str) -> None:
    spec = registry.get(format)
    guard = guarded(spec, TOOLS, calls=1, notation="lark")
    assert guard is not None
    begin = matcher(guard.text)
    syntax = spec.syntax
    tags = (*syntax.parameter_end, *syntax.call_end) if isinstance(syntax, TagSyntax) else ()
    ends = ('"', "'", "}", "]", ")", *tags, *spec.close)
    for mark in (*spec.open, *spec.begins):
        for seed in range(TEXTS):
            random = Random(seed)
            read_once(spec, sampled(begin(), random, "Well: " + mark, random.choice([5, 40, 150]), ends))


@pytest.mark.parametrize("format", GUARDED)
def test_usual_spellings_are_allowed(format: str) -> None:
    """A guard never stands in the way of a model that writes its own format well."""
    spec = registry.get(format)
    guard = guarded(spec, TOOLS)
    assert guard is not None
    machine = Machine(guard.text)
    one = ToolCall("", "get_weather", json.dumps({"unit": "celsius", "city": 'A "b" <c> [d] it\'s \\ é', "days": 3}))
    two = ToolCall("", "now", "{}")
    for calls in ([one], [two], [one, two]):
        written = render_calls(spec, calls)
        for text in (written, f"Sure.\n{written}", f"{written}\n\nDone. Is 1 < 2?", f"{written}\n{written}"):
            assert machine.accepts(text), text
    if spec.think:
        opening, closing = spec.think[0]
        assert machine.accepts(
            f"{opening}I could write {(*spec.open, *spec.begins)[0]}call.{closing}{render_calls(spec, [one])}"
        )
        assert Machine(guard.in_reasoning or "").accepts(f"Hm.{closing}\n{render_calls(spec, [one])}")


OPEN: Json = {"name": "log", "parameters": {"type": "object", "additionalProperties": True}}
STRICT: Json = {"name": "empty", "strict": True, "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize("format", GUARDED)
def test_only_a_tool_without_declared_parameters_takes_any(format: str) -> None:
    spec = registry.get(format)
    guard = guarded(spec, [*TOOLS, OPEN, STRICT])
    assert guard is not None
    machine = Machine(guard.text)

    def accepts(name: str, **arguments: Any) -> bool:
        return machine.accepts(render_calls(spec, [ToolCall("", name, json.dumps(arguments))]))

    assert accepts("log", zone="UTC", at="noon")
    assert accepts("log")
    assert accepts("get_weather", city="Rome")
    assert not accepts("get_weather", city="Rome", zone="UTC")
    assert accepts("empty")
    assert not accepts("empty", zone="UTC")


SPELLINGS: dict[str, Sequence[str]] = {
    "pythonic": (
        "[get_weather(days=3, city='Rome')]",
        'get_weather(city = "Rome", unit="celsius",)',
        '[\n    get_weather(\n        city="Rome",\n    ),\n    now(),\n]',
        'save.all(flag=true, any=None, options={"a": [1, {"b": null}]})',
        '[save.all(either="""two\n"lines\'""", items=[1, 2.5, None,])]',
        "[now()]\n",
    ),
    "hermes": (
        '{"name":"get_weather","arguments":{"days":3,"city":"Rome"}}',
        '\n{\n  "name": "get_weather",\n  "arguments": {\n    "city": "Rome"\n  }\n}\n',
        "{'name': 'save.all', 'arguments': {'flag': True, 'any': None,}}",
        '{"arguments": {"city": "Rome"}, "name": "get_weather"}',
        '{"id": "x", "type": "function", "function": {"name": "now", "parameters": {}}}',
        '[{"name": "now", "arguments": {}}, {"name": "now"}]',
    ),
    "qwen3_coder": (
        "\n<function=get_weather>\n<parameter=days>\n3\n</parameter>\n<parameter=city>Rome</parameter>\n</function>\n",
        "<function=save.all><parameter=any>a </b> c\n\n</parameter></function><function=now></function>",
        "<function=save.all>\n<parameter=items>\n[1,\n 2]\n</parameter>\n</function>",
    ),
}


@pytest.mark.parametrize(("format", "body"), [(name, body) for name, bodies in SPELLINGS.items() for body in bodies])
def test_other_spellings_are_allowed(format: str, body: str) -> None:
    spec = registry.get(format)
    guard = guarded(spec, TOOLS)
    assert guard is not None
    assert Machine(guard.text).accepts(f"{spec.open[0]}{body}{spec.close[0]}")


@pytest.mark.parametrize("format", ["pythonic", "hermes", "mistral", "qwen3_coder"])
@pytest.mark.parametrize("value", ["a<|tool_call_end|>", "a</tool_call>", "[TOOL_CALLS]"])
def test_no_string_swallows_a_mark(format: str, value: str) -> None:
    spec = registry.get(format)
    if value[1:] not in (*spec.close,) and value not in spec.open:
        return
    call = render_calls(spec, [ToolCall("", "get_weather", json.dumps({"city": value}))])
    guard = guarded(spec, TOOLS)
    assert guard is not None
    assert not Machine(guard.text).accepts(call)


def test_one_call_alone() -> None:
    spec = registry.get("pythonic")
    guard = guarded(spec, TOOLS, calls=1)
    assert guard is not None
    machine = Machine(guard.text)
    one = "<|tool_call_start|>[now()]<|tool_call_end|>"
    assert machine.accepts(f"Well. {one} Done: <|tool_call_en")
    assert not machine.accepts(f"{one} {one}")
    assert not machine.accepts("<|tool_call_start|>[now(), now()]<|tool_call_end|>")


@pytest.mark.parametrize("format", [name for name in GUARDED if name != "phi4"])
def test_many_tools_make_no_large_grammar(format: str) -> None:
    guard = guarded(registry.get(format), many(40))
    assert guard is not None
    assert len(guard.text) <= MAX_GUARD + 100


def nested(depth: int) -> Json:
    return {"items": nested(depth - 1)} if depth else {}


HOSTILE: dict[str, list[Json]] = {
    "many tools": many(5000),
    "a long enum": many(1, key={"enum": [f"value {number}" for number in range(20_000)]}),
    "deep": many(1, key=nested(80)),
    "a name that no reader reads": [{"name": "a b(", "parameters": {}}],
    "no function": [{"type": "custom", "custom": {"name": "f"}}],
    "a name that is none": [{"name": 5}],
}


@pytest.mark.parametrize("format", ["pythonic", "qwen3_coder"])
@pytest.mark.parametrize("name", HOSTILE)
def test_what_has_no_grammar_goes_without(format: str, name: str) -> None:
    guard = guarded(registry.get(format), HOSTILE[name])
    assert (guard is not None and guard.marked) is (name == "deep")
    # In JSON any name can be told.
    assert (guard is not None) is (name in ("deep", "a name that no reader reads"))

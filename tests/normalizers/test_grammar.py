"""What grammars accept, read as regular expressions. tests/formats/test_forcing.py runs them in a real engine."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from decimal import Decimal
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normalizers import registry
from normalizers.events import ToolCall
from normalizers.write.grammar import grammar, guarded, literal
from normalizers.write.render import render_calls
from tests.normalizers.gbnf import Machine

Json = dict[str, Any]

FORCED = [name for name in registry.names() if grammar(registry.get(name), [{"name": "f"}])]
NUMBERS: dict[str, tuple[dict[str, Any], list[int], list[int]]] = {
    "both": ({"minimum": 7, "maximum": 1203}, [7, 9, 10, 99, 100, 1199, 1203], [6, 0, -7, 1204, 9999]),
    "open": ({"exclusiveMinimum": 7, "exclusiveMaximum": 12}, [8, 11], [7, 12]),
    "negative": ({"minimum": -130, "maximum": -5}, [-130, -99, -5], [-131, -4, 5, 0]),
    "around 0": ({"minimum": -3, "maximum": 12}, [-3, 0, 12], [-4, 13]),
    "from": ({"minimum": 15}, [15, 19, 20, 100, 10**9], [14, 0, -15]),
    "up to": ({"maximum": 15}, [15, 0, -1, -(10**9)], [16, 100]),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_ranges(name: str) -> None:
    bounds, inside, outside = NUMBERS[name]
    pattern = re.compile(bounded("integer", bounds))
    assert [n for n in inside if not pattern.fullmatch(str(n))] == []
    assert [n for n in outside if pattern.fullmatch(str(n))] == []


@given(st.integers(-3000, 3000), st.integers(0, 3000), st.integers(-7000, 7000))
def test_any_range(low: int, size: int, number: int) -> None:
    pattern = re.compile(bounded("integer", {"minimum": low, "maximum": low + size}))
    assert bool(pattern.fullmatch(str(number))) == (low <= number <= low + size)


PIECE = re.compile(r'"((?:\\.|[^"\\])*)"|(\[(?:\\.|[^\]\\])*\]|\{[\d,]+\}|[()|*?+])|([a-z][\w-]*)')


def pattern_of(text: str, name: str) -> str:
    """The regular expression of what a rule accepts. It must not be recursive."""
    rules = dict(line.split(" ::= ", 1) for line in text.splitlines() if line)

    def expanded(body: str) -> str:
        return "".join(
            f"(?:{expanded(rules[name])})"
            if name
            else sign.replace("(", "(?:")
            if sign
            else re.escape(unescaped(terminal))
            for terminal, sign, name in PIECE.findall(body)
        )

    return expanded(rules[name])


def unescaped(terminal: str) -> str:
    return re.sub(r"\\(x[0-9a-f]{2}|.)", lambda m: chr(int(m[1][1:], 16)) if m[1][0] == "x" else m[1], terminal)


def written(format: str, tools: Sequence[Json], **options: Any) -> str:
    made = grammar(registry.get(format), tools, **options)
    assert made is not None
    return made.text


def accepts(format: str, parameters: dict[str, Any], arguments: dict[str, Any]) -> bool:
    """Whether the grammar for `f` with these parameters accepts the call as `render_calls` writes it."""
    text = written(format, [{"name": "f", "parameters": parameters}], calls=1)
    return Machine(text).accepts(render_calls(registry.get(format), [ToolCall("", "f", json.dumps(arguments))]))


@pytest.mark.parametrize("format", FORCED)
def test_a_call_without_arguments_is_written_as_render_writes_it(format: str) -> None:
    assert accepts(format, {}, {})


@pytest.mark.parametrize("format", FORCED)
@pytest.mark.parametrize("top", ["allOf", "$ref"])
def test_parameters_composed_at_the_top(format: str, top: str) -> None:
    properties = {"count": {"type": "integer"}, "city": {"type": "string"}}
    count = {"type": "object", "properties": {"count": properties["count"]}, "required": ["count"]}
    city = {"properties": {"city": properties["city"]}, "required": ["city"]}
    parameters: dict[str, Any]
    if top == "allOf":
        parameters = {"allOf": [count, {"$ref": "#/$defs/city"}], "$defs": {"city": city}}
    else:
        both = {"properties": properties, "required": ["count", "city"]}
        parameters = {"$ref": "#/$defs/both", "$defs": {"both": both}}
    assert accepts(format, parameters, {"count": 2, "city": "Paris"})
    for wrong in ({}, {"count": 2}, {"city": "Paris"}, {"count": "two", "city": "Paris"}):
        assert not accepts(format, parameters, wrong)


ARRAYS: dict[str, tuple[dict[str, Any], list[list[Any]], list[list[Any]]]] = {
    "any length": ({"items": {"type": "integer"}}, [[], [1], [1, 2, 3]], [["a"]]),
    "from, to": ({"items": {"type": "integer"}, "minItems": 2, "maxItems": 3}, [[1, 2], [1, 2, 3]], [[], [1], [1] * 4]),
    "one at least": ({"items": {"type": "integer"}, "minItems": 1}, [[1], [1, 2]], [[]]),
    "none": ({"maxItems": 0}, [[]], [[1]]),
    "first ones": (
        {"prefixItems": [{"type": "integer"}, {"type": "boolean"}], "items": {"type": "integer"}},
        [[1, True], [1, True, 2]],
        [[1], [1, 2]],
    ),
    "first ones alone": ({"prefixItems": [{"type": "integer"}], "items": False}, [[1]], [[], [1, 2]]),
    "first ones, three in all": (
        {"prefixItems": [{"type": "integer"}], "items": {"type": "boolean"}, "minItems": 3, "maxItems": 3},
        [[1, True, False]],
        [[1], [1, True], [1, True, False, True]],
    ),
    "more first ones than allowed": (
        {"prefixItems": [{"type": "integer"}] * 3, "items": {"type": "integer"}, "maxItems": 2},
        [[1, 2]],
        [[1, 2, 3]],
    ),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("format", ["hermes", "pythonic"])
def test_the_length_of_arrays(format: str, name: str) -> None:
    schema, inside, outside = ARRAYS[name]
    parameters = {"type": "object", "properties": {"x": {"type": "array", **schema}}, "required": ["x"]}
    assert [value for value in inside if not accepts(format, parameters, {"x": value})] == []
    assert [value for value in outside if accepts(format, parameters, {"x": value})] == []


@pytest.mark.parametrize("format", [name for name in FORCED if registry.get(name).dialect == "tags"])
@pytest.mark.parametrize("schema", [{}, {"description": "Anything."}], ids=["empty", "described"])
def test_a_required_parameter_without_a_type_is_text_between_tags(format: str, schema: dict[str, Any]) -> None:
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    assert accepts(format, parameters, {"x": "It is 7 < 8"})
    assert accepts(format, parameters, {"x": [1, None]})


@pytest.mark.parametrize("format", FORCED)
def test_up_to_four_arguments_come_in_any_order_each_once(format: str) -> None:
    keys = ("a", "b", "c", "d")
    parameters = {"type": "object", "properties": {key: {"type": "integer"} for key in keys}, "required": ["b", "d"]}
    for order in permutations(keys):
        assert accepts(format, parameters, dict.fromkeys(order, 1))
    assert accepts(format, parameters, {"d": 1, "b": 2})
    assert not accepts(format, parameters, {"a": 1, "d": 1, "c": 2})


@pytest.mark.parametrize("format", FORCED)
def test_many_arguments_come_in_the_order_of_the_schema(format: str) -> None:
    keys = ("a", "b", "c", "d", "e")
    parameters = {"type": "object", "properties": {key: {"type": "integer"} for key in keys}, "required": ["b"]}
    assert accepts(format, parameters, {"b": 1, "a": 1, "e": 1})
    assert not accepts(format, parameters, {"a": 1, "b": 1})


FRACTIONS: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "both": ({"minimum": 0.5, "maximum": 2.5}, ["1", "1.5", "2"], ["0", "0.4", "2.6", "3", "-1"]),
    "negative": ({"minimum": -2.5, "maximum": -0.5}, ["-2", "-1.5", "-1"], ["-3", "-2.6", "-0.4", "0", "1"]),
    "around 0": ({"minimum": -1.5, "maximum": 1.5}, ["-1", "0", "0.5", "1"], ["-2", "-1.6", "1.6", "2"]),
    "exclusive": ({"exclusiveMinimum": 1, "exclusiveMaximum": 3}, ["2", "2.5"], ["1", "3", "0.5", "3.5"]),
    "no whole number": ({"minimum": 0.25, "maximum": 0.75}, ["0.5"], ["0", "1", "0.2", "0.8"]),
    "exclusive, no whole number": ({"exclusiveMinimum": 1, "exclusiveMaximum": 2}, ["1.5"], ["1", "2"]),
    "from": ({"minimum": 1.5}, ["2", "2.5", "10", "1000"], ["1", "1.4", "0", "-2"]),
    "up to": ({"maximum": -1.5}, ["-2", "-2.5", "-1000"], ["-1", "-1.4", "0", "2"]),
}


def bounded(kind: str, bounds: dict[str, Any]) -> str:
    schema = {"type": "object", "properties": {"n": {"type": kind, **bounds}}}
    return pattern_of(written("pythonic", [{"name": "f", "parameters": schema}]), "x-n").removeprefix("n=")


@pytest.mark.parametrize("name", FRACTIONS)
def test_fractional_bounds(name: str) -> None:
    bounds, inside, outside = FRACTIONS[name]
    pattern = re.compile(bounded("number", bounds))
    assert [n for n in inside if not pattern.fullmatch(n)] == []
    assert [n for n in outside if pattern.fullmatch(n)] == []


def test_whole_numbers_between_fractional_bounds() -> None:
    pattern = re.compile(bounded("integer", {"minimum": 1.5, "maximum": 3.5}))
    assert [n for n in range(-5, 9) if pattern.fullmatch(str(n))] == [2, 3]


@given(st.data(), st.decimals(-30, 30, places=1), st.decimals("0.1", 30, places=1), st.booleans())
def test_a_number_that_the_grammar_accepts_is_within_its_bounds(
    data: st.DataObject, low: Decimal, size: Decimal, exclusive: bool
) -> None:
    least, maximum = ("exclusiveMinimum", "exclusiveMaximum") if exclusive else ("minimum", "maximum")
    pattern = bounded("number", {least: float(low), maximum: float(low + size)})
    number = Decimal(data.draw(st.from_regex(re.compile(pattern, re.ASCII), fullmatch=True)))
    assert low < number < low + size if exclusive else low <= number <= low + size


def test_only_the_chosen_tools() -> None:
    text = written("hermes", [{"name": "f"}, {"name": "g"}], only=["g"])
    assert r"\"g\"" in text
    assert r"\"f\"" not in text
    assert grammar(registry.get("hermes"), [{"name": "f"}], only=["g"]) is None
    assert grammar(registry.get("native_json"), [{"name": "f"}]) is None


def test_literals() -> None:
    assert literal('a"\\\n\x00é') == r'"a\"\\\x0a\x00é"'


odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "properties",
                    "items",
                    "enum",
                    "anyOf",
                    "allOf",
                    "required",
                    "minimum",
                    "maxLength",
                    "$ref",
                    "const",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=40)
@given(odd)
def test_every_schema_gives_a_grammar(schema: Any) -> None:
    for format in ("pythonic", "hermes", "qwen3_coder"):
        tool = {"name": "f", "parameters": {"type": "object", "properties": {"x": schema}}}
        Machine(written(format, [tool], answer=schema if isinstance(schema, dict) else None))  # knows every rule
        if (guard := guarded(registry.get(format), [tool])) is not None:
            Machine(guard.text)


@pytest.mark.parametrize("format", ["hermes", "qwen3_coder"])
def test_a_schema_that_refers_to_itself_without_end(format: str) -> None:
    schema = {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "type": "object"}}}
    parameters = {**schema, "type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}}
    assert len(written(format, [{"name": "f", "parameters": parameters}])) < 1_000_000


OBJECTS: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "any": ({"type": "object"}, [{}, {"a": 1}], [[], 1]),
    "closed and empty": ({"type": "object", "additionalProperties": False}, [{}], [{"a": 1}]),
    "a map": (
        {"type": "object", "additionalProperties": {"type": "integer"}},
        [{}, {"a": 1}, {"a": 1, "b c": 2}],
        [{"a": "x"}, {"a": 1, "b": None}],
    ),
    "all of, within": (
        {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}}, {"required": ["a"]}]},
        [{"a": 1}],
        [{}, {"a": "x"}],
    ),
    "required and not": (
        {"properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}, "required": ["b"]},
        [{"b": True}, {"a": 1, "b": False}, {"b": False, "a": 1}],
        [{}, {"a": 1}],
    ),
}


@pytest.mark.parametrize("format", ["hermes", "pythonic", "mistral", "kimi_k2"])
@pytest.mark.parametrize("name", OBJECTS)
def test_objects(format: str, name: str) -> None:
    schema, fitting, others = OBJECTS[name]
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    assert [value for value in fitting if not accepts(format, parameters, {"x": value})] == []
    assert [value for value in others if accepts(format, parameters, {"x": value})] == []


TAGGED: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "a text": ({"type": "string"}, ["", "a b", "5"], []),
    "a text or a number": ({"type": ["string", "integer"]}, ["x", 5], []),
    "no text": ({"type": ["integer", "boolean"]}, [5, True], ["x"]),
    "a text of few": ({"enum": ["a", "b"]}, ["a", "b"], ["c"]),
    "a value of few": ({"enum": ["a", 5]}, ["a", 5], ["c", 6]),
    "a number by a branch": ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, [5, None], ["x"]),
}


@pytest.mark.parametrize("format", ["qwen3_coder", "glm45", "deepseek_v32", "minimax_m2"])
@pytest.mark.parametrize("name", TAGGED)
def test_values_between_tags(format: str, name: str) -> None:
    schema, fitting, others = TAGGED[name]
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    assert [value for value in fitting if not accepts(format, parameters, {"x": value})] == []
    assert [value for value in others if accepts(format, parameters, {"x": value})] == []

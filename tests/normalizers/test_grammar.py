"""Grammars as text: what a real engine makes of them is in tests/formats/test_forcing.py."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normalizers import registry
from normalizers.events import ToolCall
from normalizers.write.grammar import grammar, literal
from normalizers.write.render import render_calls

FORCED = [name for name in registry.names() if grammar(registry.get(name), [{"name": "f"}])]
NUMBERS: dict[str, tuple[dict[str, Any], list[int], list[int]]] = {
    "both": ({"minimum": 7, "maximum": 1203}, [7, 9, 10, 99, 100, 1199, 1203], [6, 0, -7, 1204, 9999]),
    "open": ({"exclusiveMinimum": 7, "exclusiveMaximum": 12}, [8, 11], [7, 12]),
    "negative": ({"minimum": -130, "maximum": -5}, [-130, -99, -5], [-131, -4, 5, 0]),
    "around 0": ({"minimum": -3, "maximum": 12}, [-3, 0, 12], [-4, 13]),
    "from": ({"minimum": 15}, [15, 19, 20, 100, 10**9], [14, 0, -15]),
    "up to": ({"maximum": 15}, [15, 0, -1, -(10**9)], [16, 100]),
}


def rule(text: str, name: str) -> str:
    found = re.search(rf"^{name} ::= (.*)$", text, re.M)
    assert found
    return found[1]


def as_pattern(expression: str) -> re.Pattern[str]:
    """The part of GBNF that numbers need, as a regular expression."""
    return re.compile(re.sub(r'"((?:\\.|[^"\\])*)"', lambda m: re.escape(m[1]), expression).replace(" ", ""))


@pytest.mark.parametrize("name", NUMBERS)
def test_ranges(name: str) -> None:
    bounds, inside, outside = NUMBERS[name]
    schema = {"type": "object", "properties": {"n": {"type": "integer", **bounds}}}
    text = grammar(registry.get("pythonic"), [{"name": "f", "parameters": schema}])
    assert text
    pattern = as_pattern(rule(text, "x-f-n").removeprefix('"n=" '))
    assert [n for n in inside if not pattern.fullmatch(str(n))] == []
    assert [n for n in outside if pattern.fullmatch(str(n))] == []


@given(st.integers(-3000, 3000), st.integers(0, 3000), st.integers(-7000, 7000))
def test_any_range(low: int, size: int, number: int) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": low, "maximum": low + size}}}
    text = grammar(registry.get("pythonic"), [{"name": "f", "parameters": schema}])
    assert text
    pattern = as_pattern(rule(text, "x-f-n").removeprefix('"n=" '))
    assert bool(pattern.fullmatch(str(number))) == (low <= number <= low + size)


@pytest.mark.parametrize("format", FORCED)
def test_a_call_without_arguments_is_written_as_render_writes_it(format: str) -> None:
    spec = registry.get(format)
    text = grammar(spec, [{"name": "f"}], calls=1)
    assert text
    rules = dict(line.split(" ::= ", 1) for line in text.splitlines() if line)

    def expanded(body: str) -> str:
        return "".join(
            re.sub(r"\\(x[0-9a-f]{2}|.)", lambda m: chr(int(m[1][1:], 16)) if m[1][0] == "x" else m[1], terminal)
            if terminal or not name
            else expanded(rules[name])
            for terminal, name in re.findall(r'"((?:\\.|[^"\\])*)"|([a-z][\w-]*)', body)
        )

    assert expanded(rules["root"]) == render_calls(spec, [ToolCall("", "f", "{}")])


def test_only_the_tools_that_are_named() -> None:
    text = grammar(registry.get("hermes"), [{"name": "f"}, {"name": "g"}], only=["g"])
    assert text
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


@given(odd)
def test_whatever_a_schema_is_there_is_a_grammar(schema: Any) -> None:
    for format in ("pythonic", "hermes", "qwen3_coder"):
        tool = {"name": "f", "parameters": {"type": "object", "properties": {"x": schema}}}
        text = grammar(registry.get(format), [tool], answer=schema if isinstance(schema, dict) else None)
        assert text
        names = {line.split(" ::= ")[0] for line in text.splitlines() if line}
        bare = re.sub(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|\{[\d,]*\}|.* ::= ', " ", text)
        assert set(re.findall(r"[a-z][\w-]*", bare)) <= names


@pytest.mark.parametrize("format", ["hermes", "qwen3_coder"])
def test_a_schema_that_names_itself_without_end(format: str) -> None:
    schema = {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "type": "object"}}}
    parameters = {**schema, "type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}}
    text = grammar(registry.get(format), [{"name": "f", "parameters": parameters}])
    assert text
    assert len(text) < 1_000_000

"""Example turns made from the tools of a request."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normalizers.write.examples import Example, example_turns

Json = dict[str, Any]
KINDS: tuple[Example, ...] = ("ask", "call", "calls", "chain", "hello")
ORDERS = st.lists(st.sampled_from(KINDS), max_size=5)

LEAVES: st.SearchStrategy[Json] = st.sampled_from(
    [
        {"type": "string"},
        {"type": "string", "enum": ["a", "b"]},
        {"type": "string", "format": "date"},
        {"type": "string", "examples": ["Rome"]},
        {"const": 7},
        {"type": "integer", "minimum": 10},
        {"type": "number", "maximum": 1},
        {"type": ["null", "boolean"]},
        {"type": "boolean", "default": False},
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        {},
    ]
)


def objects(inner: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    names = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=8)
    members = st.dictionaries(names, inner, max_size=4)
    return members.flatmap(
        lambda members: st.builds(
            lambda required: {"type": "object", "properties": members, "required": required},
            st.lists(st.sampled_from(sorted(members)), unique=True) if members else st.just([]),
        )
    )


SCHEMAS = st.recursive(LEAVES, lambda inner: objects(inner) | inner.map(lambda i: {"type": "array", "items": i}))
FUNCTIONS = st.builds(
    lambda name, parameters: {"type": "function", "function": {"name": name, "parameters": parameters}},
    st.from_regex(r"[a-z][a-z0-9_.]{0,12}", fullmatch=True),
    objects(SCHEMAS),
)


@given(st.lists(FUNCTIONS, max_size=4), ORDERS)
def test_each_call_fits_its_schema_and_has_its_result(tools: list[Json], order: list[Example]) -> None:
    turns = example_turns(tools, order)
    assert turns == example_turns(json.loads(json.dumps(tools)), order)
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in reversed(tools)}
    asked, answered = [], []
    for turn in turns:
        assert isinstance(turn["content"], str)
        for call in turn.get("tool_calls", ()):
            asked.append(call["id"])
            jsonschema.validate(json.loads(call["function"]["arguments"]), schemas[call["function"]["name"]])
        if turn["role"] == "tool":
            answered.append(turn["tool_call_id"])
    assert asked == answered
    assert len(set(asked)) == len(asked)
    if turns:
        assert turns[0]["role"] == "user"
        assert turns[-1]["role"] == "assistant"
        assert not turns[-1].get("tool_calls")


@pytest.mark.parametrize(
    "tools",
    [
        [],
        [{"type": "custom"}],
        [{"type": "function", "function": {"name": "f"}}],
        [{"type": "function", "function": {"name": "f", "parameters": None}}],
        [{"type": "function", "function": {"name": "f", "parameters": {"properties": [], "required": "x"}}}],
        [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": 1}, "required": ["a", 2]}}}],
        [
            {
                "name": "flat",
                "parameters": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
            }
        ],
    ],
    ids=str,
)
def test_odd_tools_give_what_they_can(tools: list[Json]) -> None:
    for kind in KINDS:
        json.dumps(example_turns(tools, [kind]))


def test_a_schema_without_end_gives_a_value_of_bounded_depth() -> None:
    schema: Json = {"type": "object", "required": ["a"]}
    schema["properties"] = {"a": schema}
    deep = example_turns([{"function": {"name": "f", "parameters": schema}}], ["call"])
    assert len(json.dumps(deep)) < 1000


def test_the_words() -> None:
    city = {"type": "object", "properties": {"city_name": {"type": "string"}}, "required": ["city_name"]}
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": city}}
    assert [(turn["role"], turn["content"]) for turn in example_turns([tool], ["ask", "call", "hello"])] == [
        ("user", "Use get_weather."),
        ("assistant", "Please tell me city name."),
        ("user", 'Use get_weather with city_name = "abc".'),
        ("assistant", ""),
        ("tool", '{"ok": true}'),
        ("assistant", "Done."),
        ("user", "Hello, who are you?"),
        ("assistant", "Hello! How can I help you?"),
    ]

"""Which schemas an engine can be held to: what people write passes, what would keep an engine busy doesn't."""

from __future__ import annotations

import re
from math import isqrt
from typing import Any

import pytest

from gateway.errors import ProviderInvalidRequest
from gateway.request.constraints import constraint, measured
from gateway.schema.fault import Unchecked
from gateway.schema.ways import MAX_OPTIONAL, MAX_PATHS, MAXIMUM, measure, paths
from gateway.wire.chat import ChatRequest, encode

Json = dict[str, Any]

TREE: Json = {
    "$defs": {"node": {"type": "object", "properties": {"below": {"type": "array", "items": {"$ref": "#/$defs/node"}}}}}
}
OPTIONAL: Json = {"type": "object", "properties": {f"p{n}": {} for n in range(MAX_OPTIONAL + 1)}}
CHOICE: Json = {"enum": [*range(MAXIMUM)]}


@pytest.mark.parametrize(
    "schema",
    [
        {**TREE, "$ref": "#/$defs/node"},
        {**OPTIONAL, "required": ["p0"]},
        CHOICE,
        {"anyOf": [CHOICE], "oneOf": []},
        {"$ref": "#"},
        {"properties": {"a": {"$ref": "#"}, "b": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}}},
        {"properties": {"a": {"$ref": "#/properties/b/items/0"}, "b": {"items": [CHOICE]}}},
        {"$ref": "#/nowhere/0", "x~y": 1},
        {"anyOf": 5, "enum": "x", "type": ["string", "null"], "properties": {"a": 5, "b": True}, "items": None},
        {"pattern": "(a|a)*" * 30},  # not anchored: llama.cpp ignores it
        5,
    ],
)
def test_what_an_engine_bears(schema: Any) -> None:
    measure([schema])


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (OPTIONAL, "properties that aren't required"),
        ({"items": {"prefixItems": [OPTIONAL]}}, "properties that aren't required"),
        ({"anyOf": [CHOICE, {"type": "null"}]}, "could begin"),
        ({"allOf": [CHOICE, CHOICE]}, "could begin"),
        ({**CHOICE, "properties": {"a": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}, "could begin"),
        ({"additionalProperties": {"$defs": {"a/b": CHOICE}, "enum": [*range(MAXIMUM + 1)]}}, "could begin"),
        ({"a/b": {"~": [CHOICE]}, "anyOf": [{"$ref": "#/a~1b/~0/0"}] * 2}, "could begin"),
        ({"items": {"pattern": "^(a|a|a|a)*$"}}, f"more than {MAX_PATHS} ways"),
        ({"pattern": "^(a$"}, "leaves a parenthesis open"),
        ({"pattern": "^a)$"}, "a parenthesis too many"),
    ],
)
def test_what_it_does_not(schema: Json, reason: str) -> None:
    with pytest.raises(Unchecked, match=reason):
        measure([schema])


def test_schemas_count_together() -> None:
    half: Json = {"properties": {f"p{n}": {} for n in range(isqrt(MAX_OPTIONAL**2 // 2) + 1)}}
    measure([half])
    with pytest.raises(Unchecked, match="properties that aren't required"):
        measure([half, half])


@pytest.mark.parametrize(("tools", "optional"), [(58, 34), (58, 60), (120, 16), (400, 40), (1000, 30)])
def test_many_small_schemas_pass(tools: int, optional: int) -> None:
    """As agents with many tools send them: llama.cpp makes a grammar of each in a few milliseconds."""
    measure([{"properties": {f"p{n}": {} for n in range(optional)}}] * tools)


@pytest.mark.parametrize(
    ("pattern", "ways"),
    [
        ("^abc$", 1),
        ("^(Mon|Tue|Wed)$", 3),
        ("^a?b$", 2),
        ("^a*$", 10),
        ("^a+$", 10),
        ("^(?:ab)*$", 6),
        ("^a{3}$", 1),
        ("^a{0,2}$", 3),
        ("^a{2,}$", 10),
        ("^(a|b){4}$", 16),
        (r"^[(|)]\(\)[]a]$", 1),
        ("^*a{,}{x}$", 10),
        ("^(a{,900}){,900}$", MAX_PATHS + 1),
    ],
)
def test_paths_through_a_pattern(pattern: str, ways: int) -> None:
    assert paths(pattern) == ways


@pytest.mark.parametrize(
    "pattern",
    [
        r"^\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:\d{2})?)?$",
        r"^(\+\d{1,3})?[ -]?(\(\d{1,4}\))?([ -]?\d{1,4}){1,5}$",
        r"^(25[0-5]|2[0-4]\d|1?\d?\d)(\.(25[0-5]|2[0-4]\d|1?\d?\d)){3}$",
        r"^(?:[a-z0-9]+(?:[._-][a-z0-9]+)*)@(?:[a-z0-9-]+\.)+[a-z]{2,}$",
        r"^(M{0,4}(CM|CD|D?C{0,3})(XC|XL|L?X{0,3})(IX|IV|V?I{0,3}))$",
        r"^(\w+\s?){1,50}$",
    ],
)
def test_what_people_write(pattern: str) -> None:
    assert re.compile(pattern)
    assert paths(pattern) < MAX_PATHS / 10


def schema_of(name: str) -> Json:
    return {"type": "object", "properties": {name: {}}}


def function(name: str) -> Json:
    return {"type": "function", "function": {"name": name, "parameters": schema_of(name)}}


FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema_of("x")}}
MEASURED: list[tuple[str, Any, Json, list[list[Json]]]] = [
    ("an answer's schema", "lark", {"response_format": FORMAT}, [[schema_of("x")]]),
    ("tools, of which llama.cpp makes a grammar", "gbnf", {"tools": [function("f"), function("g")]}, [
        [schema_of("f"), schema_of("g")]
    ]),
    ("both", "gbnf", {"tools": [function("f")], "response_format": FORMAT}, [[schema_of("x")], [schema_of("f")]]),
    ("tools of another engine", "lark", {"tools": [function("f")]}, []),
    ("an engine without grammars", None, {"tools": [function("f")]}, []),
    ("tools that nobody may call", "gbnf", {"tools": [function("f")], "tool_choice": "none"}, []),
    ("a tool without parameters", "gbnf", {"tools": [{"type": "function", "function": {"name": "f"}}]}, [[]]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("notation", "fields", "schemas"), [row[1:] for row in MEASURED], ids=[row[0] for row in MEASURED]
)
def test_which_schemas_are_measured(notation: Any, fields: Json, schemas: list[list[Json]]) -> None:
    seen: list[Any] = []
    request = ChatRequest.parse(encode({"messages": [{"role": "user", "content": "Hi"}], **fields}))
    measured(request, constraint(request), notation, seen.append)
    assert seen == schemas


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"tools": [function("f")]}, "tools"), ({"response_format": FORMAT}, "response_format.json_schema.schema")],
)
def test_a_schema_that_no_engine_can_bear_is_refused_by_its_field(fields: Json, param: str) -> None:
    def refuse(schemas: object) -> None:
        raise Unchecked("it is too large")

    request = ChatRequest.parse(encode({"messages": [{"role": "user", "content": "Hi"}], **fields}))
    with pytest.raises(ProviderInvalidRequest) as refused:
        measured(request, constraint(request), "gbnf", refuse)
    assert refused.value.message == f"{param}: no engine can enforce it: it is too large"
    assert refused.value.param == param

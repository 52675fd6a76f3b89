"""The schema of a forced call."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from gateway.request.call_format import call_format
from tests.backends.ollama_double import instance, makes_grammar

Json = dict[str, Any]

CITY: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
RECURSIVE: Json = {"type": "object", "properties": {"name": {"type": "string"}, "child": {"$ref": "#"}}, "required": []}
WITH_DEFS: Json = {
    "type": "object",
    "$defs": {"Place": CITY, "Two": {"type": "array", "items": {"$ref": "#/$defs/Place"}, "minItems": 1}},
    "properties": {"to": {"$ref": "#/$defs/Place"}, "both": {"$ref": "#/$defs/Two"}},
    "required": ["to", "both"],
}
PARAMETERS: dict[str, Any] = {
    "plain": CITY,
    "none": None,
    "empty": {},
    "references": WITH_DEFS,
    "itself": RECURSIVE,
    "an old name of definitions": {
        "type": "object",
        "definitions": {"p": CITY},
        "properties": {"to": {"$ref": "#/definitions/p"}},
        "required": ["to"],
    },
    "a reference into a property": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}},
        "required": ["a", "b"],
    },
    "not": {**CITY, "not": {"required": ["country"]}},
    "unique items": {"type": "object", "properties": {"l": {"type": "array", "uniqueItems": True}}, "required": ["l"]},
    "a reference to nothing": {"type": "object", "properties": {"a": {"$ref": "#/$defs/No"}}, "required": ["a"]},
    "a reference elsewhere": {"type": "object", "properties": {"a": {"$ref": "https://e.org/s"}}, "required": ["a"]},
    "properties of those names": {
        "type": "object",
        "properties": {"not": {"type": "string"}, "uniqueItems": {"type": "integer"}},
        "required": ["not", "uniqueItems"],
    },
    "values that look like schemas": {
        "type": "object",
        "properties": {"a": {"enum": [{"not": 1}]}, "b": {"const": {"uniqueItems": True}}},
        "required": ["a", "b"],
    },
}


def tools(*names: str) -> bytes:
    made = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS[name]}} for name in names]
    return json.dumps(made).encode()


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("beside", [(), ("references",)], ids=["alone", "beside another"])
def test_each_makes_a_grammar_whose_calls_fit(name: str, beside: tuple[str, ...]) -> None:
    schema = json.loads(call_format(tools(name, *beside), ()))["json_schema"]["schema"]
    assert makes_grammar(schema, schema)
    call = instance(schema, schema)
    assert jsonschema.Draft202012Validator(schema).is_valid(call)
    assert call["name"] == name
    wanted = PARAMETERS[name] or {}
    if "reference" not in name or name == "references":
        assert jsonschema.Draft202012Validator(wanted).is_valid(call["arguments"])


def test_a_named_tool_is_the_only_one() -> None:
    both = tools("plain", "references")
    for name in ("plain", "references"):
        schema = json.loads(call_format(both, (name,)))["json_schema"]["schema"]
        assert schema["properties"]["name"] == {"const": name}
        assert "anyOf" not in schema


def test_a_call_of_another_tool_does_not_fit() -> None:
    schema = json.loads(call_format(tools("plain", "empty"), ()))["json_schema"]["schema"]
    valid = jsonschema.Draft202012Validator(schema).is_valid
    assert valid({"name": "plain", "arguments": {"city": "Rome"}})
    wrongs: list[Any] = [
        {"name": "plain", "arguments": {}},
        {"name": "other", "arguments": {}},
        {"name": "plain"},
        {"arguments": {"city": "Rome"}},
        {"name": "empty", "arguments": []},
        {"name": "empty", "arguments": {}, "more": 1},
        "plain",
        [],
    ]
    for wrong in wrongs:
        assert not valid(wrong), wrong

"""Whether a value fits a schema: only what a full checker refuses, too, is refused, and references cost little."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from normalizers.values.coerce import resolve
from normalizers.values.fit import fits

Json = dict[str, Any]

_REFERENCE = st.sampled_from(["#/$defs/a", "#/$defs/b", "#/properties/a"]).map(lambda to: {"$ref": to})
_LEAF = st.sampled_from(
    [
        {"type": "string"},
        {"type": ["integer", "null"]},
        {"enum": ["x", 1]},
        {"const": True},
        {"minimum": 2},
        {"maxLength": 1},
        {"required": ["a"]},
    ]
)
_SCHEMA = st.recursive(
    _LEAF | _REFERENCE,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(["allOf", "anyOf"]), st.lists(inner, min_size=1, max_size=3), min_size=1),
        inner.map(lambda one: {"items": one}),
        inner.map(lambda one: {"type": "object", "properties": {"a": one}, "additionalProperties": False}),
    ),
    max_leaves=6,
)
_VALUE = st.recursive(
    st.sampled_from(["x", "xy", 1, 2, True, None, 2.5]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)


@given(_SCHEMA, _SCHEMA, _SCHEMA, _VALUE)
def test_what_is_refused_is_invalid(one: Json, two: Json, three: Json, value: Any) -> None:
    schema = {"$defs": {"a": one, "b": two}, "properties": {"a": three}, "allOf": [one]}
    if fits(value, schema):
        return
    with suppress(RecursionError):  # the full checker has no answer to a reference to itself
        assert not Draft202012Validator(schema).is_valid(value)


TREE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "of": {"type": "array", "items": {"$ref": "#/$defs/t"}}},
}
CIRCLES: dict[str, Json] = {
    "allOf": {"properties": {"a": {"allOf": [{"$ref": "#/properties/a"}] * 3}}},
    "anyOf": {"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}] * 9 + [{"type": "string"}]}}},
    "oneOf": {"properties": {"a": {"oneOf": [{"$ref": "#/properties/a"}] * 9 + [{"type": "string"}]}}},
    "two": {
        "$defs": {"b": {"allOf": [{"$ref": "#/$defs/c"}] * 4}, "c": {"allOf": [{"$ref": "#/$defs/b"}] * 4}},
        "properties": {"a": {"$ref": "#/$defs/b"}},
    },
    "a ladder": {
        "$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 9} for n in range(20)},
        "properties": {"a": {"$ref": "#/$defs/d0"}},
    },
    "items": {"properties": {"a": {"items": {"allOf": [{"$ref": "#/properties/a"}] * 9}}}},
    "additional": {"additionalProperties": {"allOf": [{"$ref": "#"}] * 9}},
}


@pytest.mark.parametrize("name", CIRCLES)
@pytest.mark.parametrize("value", ["x", [["x"]], {"a": {"a": ["x"]}}], ids=["text", "list", "object"])
def test_each_schema_is_read_once_for_each_part(name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0

    def counted(schema: Any, root: Any) -> Any:
        nonlocal read
        read += 1
        return resolve(schema, root)

    monkeypatch.setattr("normalizers.values.fit.resolve", counted)
    assert fits({"a": value}, CIRCLES[name])
    assert read < 300


@pytest.mark.parametrize(("name", "right"), [("x", True), (1, False)])
def test_a_tree_is_checked_to_its_leaves(name: Any, right: bool) -> None:
    leaf = {"name": name, "of": []}
    tree = {"name": "x", "of": [{"name": "x", "of": []}, {"name": "x", "of": [leaf]}]}
    assert fits(tree, {"$defs": {"t": TREE}, "$ref": "#/$defs/t"}) is right

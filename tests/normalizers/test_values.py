"""Values: the types that a schema declares, and literals as models write them, as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from normalizers.values.coerce import SchemaIndex, coerced, json_type, schema_types, text_value
from normalizers.values.literals import json_number, python_escape

Json = dict[str, Any]
DEFINITIONS: Json = {
    "$defs": {
        "count": {"type": "integer"},
        "a/b~c": {"type": "boolean"},
        "self": {"$ref": "#/$defs/self"},
        "loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"type": "string"}]},
        "text": "no schema",
    }
}

TYPES: dict[str, tuple[Json, set[str] | None]] = {
    "one": ({"type": "string"}, {"string"}),
    "several": ({"type": ["integer", "null"]}, {"integer", "null"}),
    "none that is a text": ({"type": [1, {}]}, None),
    "an empty list": ({"type": []}, None),
    "Python's names": ({"type": ["str", "int", "float", "bool", "None", "dict", "list"]},
                       {"string", "integer", "number", "boolean", "null", "object", "array"}),
    "capitals and space": ({"type": " Integer "}, {"integer"}),
    "with their size": ({"type": ["int32", "uint8", "float64"]}, {"integer", "number"}),
    "unknown": ({"type": "intx"}, {"intx"}),
    "any of": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
    "one of": ({"oneOf": [{"type": "string"}, {"const": 1}]}, {"string", "integer"}),
    "any of, one unknown": ({"anyOf": [{"type": "string"}, {}]}, None),
    "all of": ({"allOf": [{"type": "string"}, {"minLength": 1}]}, {"string"}),
    "all of nothing": ({"allOf": [{}, {}]}, None),
    "any of no list": ({"anyOf": "string", "const": True}, {"boolean"}),
    "an enumeration": ({"enum": ["a", 1, 1.5, True, None, {}, []]},
                       {"string", "integer", "number", "boolean", "null", "object", "array"}),
    "an empty enumeration": ({"enum": []}, None),
    "a constant": ({"const": 1.5}, {"number"}),
    "properties": ({"properties": {}}, {"object"}),
    "items": ({"items": {}}, {"array"}),
    "nothing": ({"description": "x"}, None),
    "a reference": ({"$ref": "#/$defs/count"}, {"integer"}),
    "an escaped reference": ({"$ref": "#/$defs/a~1b~0c"}, {"boolean"}),
    "a reference to itself": ({"$ref": "#/$defs/self"}, None),
    "a reference within its branches": ({"$ref": "#/$defs/loop"}, None),
    "a reference to nothing": ({"$ref": "#/$defs/none", "type": "string"}, {"string"}),
    "a reference to a text": ({"$ref": "#/$defs/text"}, None),
    "a reference elsewhere": ({"$ref": "https://x/y", "const": 1}, {"integer"}),
}  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
def test_the_types_of_a_schema(name: str) -> None:
    schema, expected = TYPES[name]
    found = schema_types(schema, {**DEFINITIONS, **schema})
    assert found == (None if expected is None else frozenset(expected))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, "null"),
        (False, "boolean"),
        (0, "integer"),
        (0.0, "number"),
        ("", "string"),
        ({}, "object"),
        ([], "array"),
    ],
)
def test_the_type_of_a_value(value: object, kind: str) -> None:
    assert json_type(value) == kind


# A text, the types that its schema accepts, and its JSON.
TEXTS: list[tuple[str, str, str]] = [
    ("5", "integer", "5"),
    ("+5", "integer", "5"),
    ("05", "integer", "5"),
    ("5.5", "integer", '"5.5"'),
    ("5", "number", "5"),
    (" 1.50 ", "number", "1.50"),
    ("1e999", "number", '"1e999"'),
    ("x", "number", '"x"'),
    ("5", "string", '"5"'),
    ("5", "string integer", "5"),
    ("true", "boolean", "true"),
    ("True", "boolean", "true"),
    ("1", "boolean", "true"),
    ("0", "boolean", "false"),
    ("FALSE", "boolean", "false"),
    ("yes", "boolean", '"yes"'),
    ("1", "boolean integer", "1"),
    ("null", "null string", "null"),
    ("Null", "null", "null"),
    ("none", "null", '"none"'),
    ("null", "string", '"null"'),
    ('{"a": 1}', "object", '{"a": 1}'),
    ("{'a': True}", "object", '{"a": true}'),
    ('{\\"a\\": 1}', "object", '{"a": 1}'),
    ("{a", "object", '"{a"'),
    ("[1, 2]", "array", "[1, 2]"),
    ("[1, 2]", "object", '"[1, 2]"'),
    ("[1, 2]", "string", '"[1, 2]"'),
    ("[NaN]", "array", '"[NaN]"'),
    ("5", "something", "5"),
    ("x", "something", '"x"'),
]


@pytest.mark.parametrize(("text", "types", "expected"), TEXTS)
def test_a_text_becomes_what_its_schema_accepts(text: str, types: str, expected: str) -> None:
    accepted = frozenset(types.split())
    assert text_value(text, accepted) == expected
    assert coerced(json.dumps(text), accepted) == (json.dumps(text) if expected[0] == '"' else expected)
    assert (text_value(text, None), coerced(json.dumps(text), None)) == (json.dumps(text), json.dumps(text))
    assert coerced("5", accepted) == "5", "only a string is read"


def test_tools_that_are_looked_up() -> None:
    function = {"name": "f", "parameters": {"properties": {"a": {"type": "array", "items": {"type": "integer"}}}}}
    index = SchemaIndex(
        [{"function": function}, {"name": "g"}, {"function": "h"}, {"name": 5}, {"name": "i", "parameters": 7}]
    )
    assert index.names == {"f", "g", "i"}
    assert "f" in index
    assert "h" not in index
    assert (index.types("f", "a"), index.item_types("f", "a")) == (frozenset({"array"}), frozenset({"integer"}))
    assert (index.types("f", "b"), index.item_types("f", "b"), index.types("i", "a")) == (None, None, None)
    assert (index.positional("f", 0), index.positional("f", 1), index.positional("g", 0)) == ("a", None, None)


@pytest.mark.parametrize(
    ("required", "order"),
    [
        (["a"], ["a", "b", "c"]),
        (["a", "b"], ["a", "b", "c"]),
        ([], ["a", "b", "c"]),
        (["b"], [None, None, None]),
        (["a", "c"], ["a", None, None]),
        (None, ["a", "b", "c"]),
    ],
)  # fmt: skip
def test_arguments_without_keys_go_by_the_order_that_all_agree_on(
    required: list[str] | None, order: list[str | None]
) -> None:
    parameters: Json = {"properties": {"a": {}, "b": {}, "c": {}}, "required": required}
    index = SchemaIndex([{"name": "f", "parameters": parameters}])
    assert [index.positional("f", at) for at in range(3)] == order


NUMBERS: list[tuple[str, str | None]] = [
    ("5", "5"),
    ("0", "0"),
    ("007", "7"),
    ("-0", "-0"),
    ("+5", "5"),
    ("1_000.5_0", "1000.50"),
    ("1.", "1.0"),
    (".5", "0.5"),
    ("-.5e1_0", "-0.5e10"),
    ("1E-5", "1E-5"),
    ("1e308", "1e308"),
    ("1e309", None),
    ("9" * 400 + ".5", None),
    ("9" * 400, "9" * 400),
    ("9" * 5000, None),
    ("-" + "9" * 5000, None),
    (".", None),
    ("", None),
    ("-", None),
    ("5_", None),
    ("٣", None),
    ("0x_1F", "31"),
    ("-0xff", "-255"),
    ("+0o17", "15"),
    ("0B101", "5"),
    ("0x", None),
    ("0x__1", None),
    ("0xg", None),
    ("1j", None),
]


@pytest.mark.parametrize(("text", "expected"), NUMBERS)
def test_numbers(text: str, expected: str | None) -> None:
    assert json_number(text) == expected
    if expected is not None:
        json.loads(expected)


ESCAPES: list[tuple[str, str]] = [
    (r"\n", "\n"),
    (r"\a", "\a"),
    (r"\v", "\v"),
    (r"\f", "\f"),
    (r"\b", "\b"),
    (r"\r", "\r"),
    (r"\t", "\t"),
    (r"\\", "\\"),
    (r"\'", "'"),
    (r"\"", '"'),
    ("\\\n", ""),
    ("\\\r\n", ""),
    (r"\x41", "A"),
    (r"\u00e9", "é"),
    (r"\U0001F600", "\U0001f600"),
    (r"\U00110000", r"\U00110000"),
    (r"\101", "A"),
    (r"\0", "\0"),
    (r"\N{BULLET}", "•"),
    (r"\N{NO SUCH NAME}", r"\N{NO SUCH NAME}"),
    (r"\q", r"\q"),
    (r"\x4", r"\x4"),
    ("\\", "\\"),
]


@pytest.mark.parametrize(("written", "expected"), ESCAPES)
def test_escapes(written: str, expected: str) -> None:
    """What CPython makes of it, in a JSON string; behind the escape the text stays as it is."""
    found = python_escape(written, 0, True)
    assert found is not None
    body, end = found
    rest = written[end:].replace("\\", "\\\\")
    assert json.loads(f'"{body}{rest}"') == expected


@pytest.mark.parametrize(
    "beginning", ["\\", r"\x", r"\x4", r"\u00e", r"\U0001F60", r"\N", r"\N{", r"\N{BUL", r"\1", r"\10", "\\\r"]
)
def test_an_escape_waits_for_its_end(beginning: str) -> None:
    assert python_escape(beginning, 0, False) is None
    assert python_escape(beginning, 0, True) is not None

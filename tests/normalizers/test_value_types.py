"""Values take the one type that the tool's schema leaves them; what it doesn't decide stays as it was written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from normalizers import get, normalizer
from normalizers.write.render import render_calls
from tests.normalizers.splits import parse

NULL = {"type": "null"}
REFERENCE = {"$ref": "#/$defs/unit"}
SCHEMAS: dict[str, Any] = {
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "unit": {"type": "string", "enum": ["celsius", "kelvin"]},
    "quoted": {"enum": ['"celsius"', "celsius"]},
    "referred": REFERENCE,
    "constant": {"const": "on"},
    "digits": {"enum": [1, 2]},
    "maybe integer": {"type": ["integer", "null"]},
    "maybe string": {"anyOf": [{"type": "string"}, NULL]},
    "maybe unit": {"anyOf": [REFERENCE, NULL]},
    "unit or text": {"anyOf": [REFERENCE, {"type": "string", "minLength": 9}]},
    "integer or string": {"type": ["integer", "string"]},
    "number or string": {"type": ["number", "string"]},
    "object or string": {"anyOf": [{"type": "string"}, {"type": "object"}]},
    "boolean or string": {"type": ["boolean", "string"]},
    "boolean or integer": {"type": ["boolean", "integer"]},
    "anything": {},
}

# Between tags: a parameter's schema, the text, and the value.
TEXTS: list[tuple[str, str, Any]] = [
    ("maybe integer", "None", None),
    ("maybe integer", "null", None),
    ("maybe integer", "3", 3),
    ("maybe string", "None", None),
    ("maybe string", "none", "none"),
    ("maybe string", "Nonesuch", "Nonesuch"),
    ("maybe unit", "None", None),
    ("maybe unit", '"kelvin"', "kelvin"),
    ("string", "None", "None"),
    ("integer", "None", "None"),
    ("anything", "None", "None"),
    ("integer", "3.0", 3),
    ("integer", "-3.000", -3),
    ("integer", "3.", 3),
    ("integer", "3.5", "3.5"),
    ("integer", "1e3", "1e3"),
    ("integer", '"3"', 3),
    ("number", "3.0", 3.0),
    ("number", "'2.5'", 2.5),
    ("integer or string", "3.0", "3.0"),
    ("integer or string", '"3"', '"3"'),
    ("integer or string", "00123", "00123"),
    ("integer or string", "123", 123),
    ("integer or string", "+1", "+1"),
    ("number or string", "1.", "1."),
    ("number or string", "1.50", 1.5),
    ("maybe integer", "3.0", 3),
    ("boolean", "1", True),
    ("boolean", "0", False),
    ("boolean", '"true"', True),
    ("boolean", "2", "2"),
    ("boolean or integer", "1", 1),
    ("string", "true", "true"),
    ("unit", '"celsius"', "celsius"),
    ("unit", "'celsius'", "celsius"),
    ("unit", " celsius ", "celsius"),
    ("unit", "celsius", "celsius"),
    ("unit", '"rankine"', '"rankine"'),
    ("unit", '"celsius', '"celsius'),
    ("referred", '"kelvin"', "kelvin"),
    ("constant", '"on"', "on"),
    ("quoted", '"celsius"', '"celsius"'),
    ("digits", '"2"', 2),
    ("string", '"celsius"', '"celsius"'),
    ("unit or text", '"kelvin"', '"kelvin"'),
]

# In JSON and in Python: a parameter's schema, the literal, and the value.
LITERALS: list[tuple[str, str, Any]] = [
    ("boolean", "1", True),
    ("boolean", "0", False),
    ("boolean", "2", 2),
    ("boolean", '"true"', True),
    ("boolean", '"False"', False),
    ("boolean", '"1"', True),
    ("boolean", '"yes"', "yes"),
    ("boolean or string", "1", "1"),
    ("boolean or integer", "1", 1),
    ("string", "true", "true"),
    ("string", "False", "False"),
    ("string", "12345", "12345"),
    ("string", "1.50", "1.50"),
    ("string", "null", None),
    ("boolean or string", "true", True),
    ("maybe string", "true", "true"),
    ("maybe string", "null", None),
    ("maybe string", '"None"', "None"),
    ("integer", "3.0", 3),
    ("integer", "-3.00", -3),
    ("integer", "3.5", 3.5),
    ("integer", '"3"', 3),
    ("integer", '"3.0"', 3),
    ("integer", "true", True),
    ("number", "3.0", 3.0),
    ("number", '"2.5"', 2.5),
    ("integer or string", "3.0", 3),
    ("integer or string", '"3.0"', "3.0"),
    ("maybe integer", '"None"', None),
    ("maybe integer", "3.0", 3),
    ("unit", '"celsius"', "celsius"),
    ("anything", "1", 1),
    ("anything", "true", True),
]


def tools(schema: str) -> list[dict[str, Any]]:
    parameters = {"type": "object", "properties": {"a": SCHEMAS[schema]}, "$defs": {"unit": SCHEMAS["unit"]}}
    return [{"type": "function", "function": {"name": "f", "parameters": parameters}}]


def value(format: str, text: str, schema: str) -> Any:
    """Reads whole, character by character, cut once at each place and in random pieces."""
    message = parse(format, text, tools(schema), cuts=True, unknown_tools="refuse")
    (call,) = message.tool_calls
    assert message.content == ""
    return json.loads(call.arguments)["a"]


TAGGED = {
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=a>\n%s\n</parameter>\n</function>\n</tool_call>",
    "seed_oss": "<seed:tool_call><function=f><parameter=a>%s</parameter></function></seed:tool_call>",
    "minimax_m2": '<minimax:tool_call><invoke name="f"><parameter name="a">%s</parameter></invoke></minimax:tool_call>',
}
QUOTED = {
    "hermes": '<tool_call>{"name": "f", "arguments": {"a": %s}}</tool_call>',
    "mistral": '[TOOL_CALLS]f[ARGS]{"a": %s}',
    "gemma4": "<|tool_call>call:f{a:%s}<tool_call|>",
    "pythonic": "<|tool_call_start|>[f(a=%s)]<|tool_call_end|>",
}


@pytest.mark.parametrize("format", TAGGED)
@pytest.mark.parametrize("row", TEXTS, ids=lambda row: f"{row[0]}: {row[1]}")
def test_text_between_tags(row: tuple[str, str, Any], format: str) -> None:
    schema, text, expected = row
    assert same(value(format, TAGGED[format] % text, schema), expected)


# What a tag calls a string, where the schema takes a string and more.
STRINGS = [
    ("integer or string", "00123"),
    ("integer or string", "7"),
    ("number or string", "1e3"),
    ("boolean or string", "true"),
    ("maybe string", "null"),
    ("maybe string", "None"),
    ("object or string", '{"a": 1}'),
    ("unit or text", "null"),
    ("anything", "null"),
]


@pytest.mark.parametrize("format", ["deepseek_v32", "deepseek_v41", "kimi_k3", "k2_horizon"])
@pytest.mark.parametrize(("schema", "text"), STRINGS)
def test_a_tag_that_says_string_is_believed(schema: str, text: str, format: str) -> None:
    written = render_calls(get(format), [{"name": "f", "arguments": json.dumps({"a": text})}])
    if format == "k2_horizon":
        written = written.replace("</ifm|arg_key>", "</ifm|arg_key><ifm|arg_type>string</ifm|arg_type>")
    assert value(format, written, schema) == text


@pytest.mark.parametrize("format", ["deepseek_v32", "kimi_k3"])
def test_where_the_schema_takes_no_string_it_decides(format: str) -> None:
    written = render_calls(get(format), [{"name": "f", "arguments": '{"a": "3"}'}])
    assert value(format, written, "integer") == 3


@pytest.mark.parametrize("format", QUOTED)
@pytest.mark.parametrize("row", LITERALS, ids=lambda row: f"{row[0]}: {row[1]}")
def test_literals(row: tuple[str, str, Any], format: str) -> None:
    schema, literal, expected = row
    assert same(value(format, QUOTED[format] % literal, schema), expected)


def same(one: object, other: object) -> bool:
    return one == other and type(one) is type(other)


@pytest.mark.parametrize(("literal", "mended"), [("3.0", "schema"), ("3", "none")])
def test_a_value_of_another_type_counts_as_mended(literal: str, mended: str) -> None:
    parser = normalizer("hermes", tools("integer"))
    parser.feed(QUOTED["hermes"] % literal)
    parser.finish("stop")
    assert parser.mended == mended

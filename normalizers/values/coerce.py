"""The types that the request's tools declare, and the coercion of values to them.

Types are JSON Schema's: string, integer, number, boolean, null, array, object. A value whose type the
schema accepts stays as it is, and so does one that can't be read as an accepted type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from normalizers.values.strict_json import loads

_ALIASES = {
    "str": "string",
    "text": "string",
    "varchar": "string",
    "char": "string",
    "enum": "string",
    "int": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "decimal": "number",
    "bool": "boolean",
    "none": "null",
    "dict": "object",
    "map": "object",
    "list": "array",
    "tuple": "array",
}
_MAX_DEPTH = 16
_MAX_READ = 1000
"""Schemas read to find the types of one: references can make each of them count many times."""


class SchemaIndex:
    """Looks up tools by name and parameters by key. Answers to the same tools may share one.

    answer: the schema of the JSON that the request asks for where the model calls no tool; None if it asks for none.
    """

    __slots__ = ("_tools", "_types", "answer", "names")

    def __init__(self, tools: Sequence[Mapping[str, Any]], answer: Mapping[str, Any] | None = None) -> None:
        self.answer = answer
        self._tools: dict[str, Mapping[str, Any]] = {}
        self._types: dict[tuple[str, str], frozenset[str] | None] = {}
        for tool in tools:
            function = tool.get("function", tool)
            if not isinstance(function, Mapping):
                continue
            name = function.get("name")
            if isinstance(name, str):
                parameters = function.get("parameters")
                self._tools[name] = parameters if isinstance(parameters, Mapping) else {}
        self.names = frozenset(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def schema(self, tool: str) -> Mapping[str, Any]:
        """The JSON Schema of the tool's arguments; empty if the tool declares none."""
        return self._tools.get(tool, {})

    def parameters(self, tool: str) -> Mapping[str, Any]:
        properties = self._tools.get(tool, {}).get("properties")
        return properties if isinstance(properties, Mapping) else {}

    def parameter(self, tool: str, key: str) -> Mapping[str, Any] | None:
        schema = self.parameters(tool).get(key)
        return schema if isinstance(schema, Mapping) else None

    def types(self, tool: str, key: str) -> frozenset[str] | None:
        """The types that the parameter accepts; None if the schema doesn't tell."""
        if (tool, key) not in self._types:
            schema = self.parameter(tool, key)
            if schema is None:
                return None  # not kept: models make up keys without end
            self._types[tool, key] = schema_types(schema, self._tools[tool])
        return self._types[tool, key]

    def item_types(self, tool: str, key: str) -> frozenset[str] | None:
        """The types that the items of an array parameter accept; None if the schema doesn't tell."""
        schema = self.parameter(tool, key)
        items = None if schema is None else (resolve(schema, self._tools[tool]) or schema).get("items")
        return schema_types(items, self._tools[tool]) if isinstance(items, Mapping) else None

    def choices(self, tool: str, key: str) -> frozenset[str] | None:
        """The strings that the parameter accepts; None if the schema doesn't list them."""
        schema = self.parameter(tool, key)
        return None if schema is None else _choices(schema, self._tools[tool], 0, count())

    def coerced(self, tool: str, key: str, value: str) -> str:
        """The JSON text `value`, coerced to a type that the parameter accepts if possible."""
        return coerced(value, self.types(tool, key))

    def text(self, tool: str, key: str, text: str, types: frozenset[str] | None) -> str:
        """The JSON of an argument that the model wrote as plain text. types: of those that it may have.

        Quotes and white space around a string aren't part of it if only the string without them is one that the
        schema lists.
        """
        choices = self.choices(tool, key)
        if choices and text not in choices:
            word = text.strip()
            text = next((choice for choice in (word, _unquoted(word)) if choice in choices), text)
        return text_value(text, types)

    def positional(self, tool: str, position: int) -> str | None:
        """The key of the argument at that position; None if the order is in doubt.

        It is if the order of the properties and the order "required ones first" disagree.
        """
        properties = list(self.parameters(tool))
        listed = self._tools.get(tool, {}).get("required")
        required = {key for key in listed if isinstance(key, str)} if isinstance(listed, list | tuple) else ()
        first = [key for key in properties if key in required]
        first += [key for key in properties if key not in required]
        if position < len(properties) and properties[: position + 1] == first[: position + 1]:
            return properties[position]
        return None


def schema_types(schema: Mapping[str, Any], root: Mapping[str, Any]) -> frozenset[str] | None:
    """The types that a schema accepts, through anyOf, oneOf, allOf, enum, const and local $ref; None if unknown."""
    return _types(schema, root, 0, count())


def _types(
    schema: Mapping[str, Any], root: Mapping[str, Any], depth: int, read: Iterator[int]
) -> frozenset[str] | None:
    if depth > _MAX_DEPTH or next(read) >= _MAX_READ:
        return None
    declared = schema.get("type")
    if isinstance(declared, str):
        declared = [declared]
    if isinstance(declared, Sequence) and declared:
        return frozenset(type_name(kind) for kind in declared if isinstance(kind, str)) or None
    if (target := resolve(schema, root)) is not None:
        return _types(target, root, depth + 1, read)
    for keyword in ("anyOf", "oneOf", "allOf"):
        kinds = [
            _types(branch, root, depth + 1, read) if isinstance(branch, Mapping) else None
            for branch in _branches(schema, keyword)
        ]
        if None in kinds and keyword != "allOf":
            return None
        if found := frozenset[str]().union(*(kind for kind in kinds if kind)):
            return found
    return _implied_types(schema)


def schema_part(schema: Mapping[str, Any], root: Mapping[str, Any], key: str | None) -> Mapping[str, Any] | None:
    """The schema of an object's property, or of an array's items if `key` is None; None if nothing declares it."""
    for branch in _alternatives(schema, root, 0, count()):
        properties = branch.get("properties")
        found = properties.get(key) if key is not None and isinstance(properties, Mapping) else None
        if found is None:
            found = branch.get("items" if key is None else "additionalProperties")
        if isinstance(found, Mapping):
            return found
    return None


def _alternatives(
    schema: Mapping[str, Any], root: Mapping[str, Any], depth: int, read: Iterator[int]
) -> Iterator[Mapping[str, Any]]:
    """The schema and all branches of it, with local $ref resolved."""
    if depth > _MAX_DEPTH or next(read) >= _MAX_READ:
        return
    yield schema
    if (target := resolve(schema, root)) is not None:
        yield from _alternatives(target, root, depth + 1, read)
    for keyword in ("anyOf", "oneOf", "allOf"):
        for branch in _branches(schema, keyword):
            if isinstance(branch, Mapping):
                yield from _alternatives(branch, root, depth + 1, read)


def _branches(schema: Mapping[str, Any], keyword: str) -> Sequence[object]:
    branches = schema.get(keyword)
    return branches if isinstance(branches, Sequence) and not isinstance(branches, str) else ()


def _implied_types(schema: Mapping[str, Any]) -> frozenset[str] | None:
    """The types that a schema without `type` implies by its values or its keywords."""
    values = schema.get("enum")
    if isinstance(values, Sequence) and not isinstance(values, str) and values:
        return frozenset(json_type(value) for value in values)
    if "const" in schema:
        return frozenset({json_type(schema["const"])})
    if "properties" in schema:
        return frozenset({"object"})
    if "items" in schema:
        return frozenset({"array"})
    return None


def _choices(
    schema: Mapping[str, Any], root: Mapping[str, Any], depth: int, read: Iterator[int]
) -> frozenset[str] | None:
    """The strings that a schema accepts, through anyOf, oneOf and local $ref; None if it accepts others, too."""
    if depth > _MAX_DEPTH or next(read) >= _MAX_READ:
        return None
    values = schema.get("enum")
    if isinstance(values, Sequence) and not isinstance(values, str):
        return frozenset(value for value in values if isinstance(value, str))
    if "const" in schema:
        return frozenset(value for value in [schema["const"]] if isinstance(value, str))
    if (target := resolve(schema, root)) is not None:
        return _choices(target, root, depth + 1, read)
    branches = [*_branches(schema, "anyOf"), *_branches(schema, "oneOf")]
    if not branches:
        types = schema_types(schema, root)
        return None if types is None or "string" in types else frozenset()
    found = frozenset[str]()
    for branch in branches:
        strings = _choices(branch, root, depth + 1, read) if isinstance(branch, Mapping) else None
        if strings is None:
            return None
        found |= strings
    return found


def json_type(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case Mapping():
            return "object"
        case _:
            return "array"


def coerced(value: str, types: frozenset[str] | None) -> str:
    """JSON text, coerced to one of the types if it is a string that spells one."""
    if types is None or value[:1] != '"':
        return value
    return read_text(json.loads(value), types) or value


def text_value(text: str, types: frozenset[str] | None) -> str:
    """The JSON of a value that the model wrote as plain text. types: that its schema accepts, None if unknown."""
    value = None
    if types is not None:
        value = read_text(text, types)
        if value is None and types & _TYPES and "string" not in types:
            value = read_text(_unquoted(text.strip()), types)
    return value or json.dumps(text, ensure_ascii=False)


def _unquoted(word: str) -> str:
    """The string that stands in quotes, or the word as it is."""
    if len(word) > 1 and word[0] == word[-1] == "'":
        return word[1:-1]
    value = json.loads(word) if word[:1] == '"' and read_json(word) else None
    return value if isinstance(value, str) else word


def fitted_scalar(value: str, written: str, types: frozenset[str]) -> str:
    """A JSON number, boolean or null, as the one accepted type that it can only mean.

    written: how the model spelled it. A number or boolean where the schema wants a string is a string, a whole number
    like ``3.0`` an integer, and 1 or 0 a boolean. Anything else stays.
    """
    if value == "null":
        return value
    if value in ("true", "false"):
        return json.dumps(written, ensure_ascii=False) if "string" in types and "boolean" not in types else value
    if not types & NUMERIC:
        if "string" in types:
            return json.dumps(written, ensure_ascii=False)
        return _BOOLEANS.get(value, value) if "boolean" in types else value
    whole = None if "number" in types else _WHOLE.fullmatch(value)
    return whole[1] if whole else value


def accepts(types: frozenset[str] | None, kind: str) -> bool:
    return types is None or kind in types or (kind == "integer" and "number" in types)


def type_name(kind: str) -> str:
    kind = kind.strip().lower()
    if kind in _ALIASES:
        return _ALIASES[kind]
    for prefix, name in (("int", "integer"), ("uint", "integer"), ("float", "number")):
        if kind.startswith(prefix) and kind[len(prefix) :].isdigit():
            return name
    return kind


def resolve(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any] | None:
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    node: object = root
    for part in reference[2:].split("/"):
        part = part.replace("~1", "/").replace("~0", "~")
        node = node.get(part) if isinstance(node, Mapping) else None
    return node if isinstance(node, Mapping) else None


def read_text(text: str, types: frozenset[str]) -> str | None:
    """The JSON of the first accepted type that the text spells, in the order null, integer, number,
    boolean, object, array. None if it spells none of them, or if it must be a string.
    """
    word = text.strip()
    lower = word.lower()
    # Python, and so a chat template, writes null as `None`; `none` is a word.
    if "null" in types and (lower == "null" or word == "None"):
        return "null"
    if types & NUMERIC and (number := _number(word, types)) is not None:
        return number
    if "boolean" in types and lower in _BOOLEANS:
        return _BOOLEANS[lower]
    if _BRACKETS.get(word[:1]) in types:
        return read_container(word)
    return None if types & _TYPES else read_json(word)


def _number(word: str, types: frozenset[str]) -> str | None:
    from normalizers.values.literals import json_number  # its patterns take a millisecond to compile

    whole = None if "number" in types else _WHOLE.fullmatch(word)
    number = json_number(whole[1] if whole else word) if whole or "number" in types else None
    # What may be a string is a number only if JSON spells it so: `007` is a code.
    return number if "string" not in types or number == word else None


def read_json(text: str) -> str | None:
    """The text itself if it is strict JSON; else None."""
    try:
        loads(text)
    except ValueError:
        return None
    return text.strip()


def read_container(text: str) -> str | None:
    """The JSON of an object or array in JSON, in Python's spelling, or escaped once too often; else None."""
    if (known := read_json(text)) is not None:
        return known
    from normalizers.values.loose_json import read_loosely  # takes 3 ms to load, and few requests need it

    if (loose := read_loosely(text)) is not None:
        return loose
    # Escaped once too often, as if it were inside a string.
    try:
        inner = json.loads(f'"{text}"') if '\\"' in text else None
    except ValueError:
        return None
    return None if inner is None else read_json(inner)


_TYPES = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
NUMERIC = frozenset({"integer", "number"})
_WHOLE = re.compile(r"([+-]?\d+)(\.0*)?", re.ASCII)
_BRACKETS = {"{": "object", "[": "array"}
_BOOLEANS = {"true": "true", "1": "true", "false": "false", "0": "false"}

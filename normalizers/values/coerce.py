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
    """Looks up tools by name and parameters by key. Answers to the same tools may share one."""

    __slots__ = ("_tools", "_types", "names")

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
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

    def __contains__(self, name: str) -> bool:
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

    def coerced(self, tool: str, key: str, value: str) -> str:
        """The JSON text `value`, coerced to a type that the parameter accepts if possible."""
        return coerced(value, self.types(tool, key))

    def text(self, tool: str, key: str, text: str) -> str:
        """The JSON of an argument that the model wrote as plain text."""
        return text_value(text, self.types(tool, key))

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
    if types is None:
        return json.dumps(text, ensure_ascii=False)
    return read_text(text, types) or json.dumps(text, ensure_ascii=False)


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
    if "null" in types and lower == "null":
        return "null"
    if "number" in types or ("integer" in types and re.fullmatch(r"[+-]?\d+", word, re.ASCII)):
        from normalizers.values.literals import json_number  # its patterns take a millisecond to compile

        if (number := json_number(word)) is not None:
            return number
    if "boolean" in types and lower in _BOOLEANS:
        return _BOOLEANS[lower]
    if _BRACKETS.get(word[:1]) in types:
        return read_container(word)
    return None if types & _TYPES else read_json(word)


def read_json(text: str) -> str | None:
    """The text itself if it is JSON with finite numbers; else None."""
    try:
        json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
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


def _finite(number: str) -> float:
    from normalizers.values.literals import json_number

    if json_number(number) is None:
        raise ValueError(number)
    return float(number)


def _refuse(constant: str) -> None:
    raise ValueError(constant)


_TYPES = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
_BRACKETS = {"{": "object", "[": "array"}
_BOOLEANS = {"true": "true", "1": "true", "false": "false", "0": "false"}

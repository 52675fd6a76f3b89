"""An upper bound for the work of a check, which decides whether it needs a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEEPEST = 32
"""Levels of a schema or a value beyond which counting stops."""
MAXIMUM = 100_000
"""The highest count within one keyword's value."""

# fmt: off
_FREE = frozenset({
    "title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly", "format",
    "$defs", "definitions",
})
# A step for each entry of the keyword's value.
_FLAT = frozenset({
    "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "dependentRequired",
})
_NAMES = frozenset({"type", "required"})
_DRAFT = "https://json-schema.org/draft/2020-12/schema"
# Keywords with schemas inside, and how often jsonschema evaluates them.
_TIMES = {
    "additionalProperties": 1, "propertyNames": 1, "items": 1, "properties": 1, "prefixItems": 1,
    "allOf": 1, "anyOf": 1, "oneOf": 2, "not": 2, "if": 2, "then": 2, "else": 2,
}
# fmt: on


def steps(schema: Any) -> int | None:
    """The most keywords that `jsonschema` evaluates for one node of a value; None if that can't be predicted.

    The schema need not be valid. We can't tell for patterns, `uniqueItems`, references in a circle, other drafts than
    2020-12, and keywords that aren't listed here.
    """
    try:
        return _Count(schema).schema(schema, 0)
    except _Unknown:
        return None


class _Unknown(Exception):
    pass


class _Count:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._definitions: dict[str, int] = {}
        self._open: set[str] = set()

    def schema(self, schema: Any, depth: int) -> int:
        if isinstance(schema, bool):
            return 1
        if not isinstance(schema, Mapping) or depth > DEEPEST:
            raise _Unknown
        return 1 + sum(self._keyword(name, value, depth + 1) for name, value in schema.items())

    def _keyword(self, name: str, value: Any, depth: int) -> int:
        if name in _FREE:
            return 0
        if name in _FLAT:
            return size(value, MAXIMUM)
        if name in _NAMES:
            return _names(value)
        if name == "$schema" and value == _DRAFT:
            return 0
        if name == "$ref":
            return 1 + self._reference(value, depth)
        if name not in _TIMES:
            raise _Unknown
        schemas = [value] if isinstance(value, Mapping | bool) and name != "properties" else value
        if isinstance(schemas, Mapping):
            schemas = [*schemas.values()]
        if not isinstance(schemas, list):
            raise _Unknown
        return 1 + _TIMES[name] * sum(self.schema(each, depth) for each in schemas)

    def _reference(self, reference: Any, depth: int) -> int:
        if not isinstance(reference, str) or reference in self._open:
            raise _Unknown
        if reference not in self._definitions:
            place, _, name = reference.rpartition("/")
            definitions = self._root.get(place[2:]) if place in ("#/$defs", "#/definitions") else None
            if not isinstance(definitions, Mapping) or name not in definitions:
                raise _Unknown
            self._open.add(reference)
            self._definitions[reference] = self.schema(definitions[name], depth)
            self._open.remove(reference)
        return self._definitions[reference]


def _names(value: Any) -> int:
    """For values other than names, `jsonschema` compares each with every other."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _Unknown
    return size(value, MAXIMUM)


def size(value: Any, maximum: int) -> int:
    """Counts the nodes of a JSON value, a long text as several; stops beyond `maximum` and below DEEPEST levels.

    Then returns most + 1.
    """
    found = 0
    level = [value]
    for _ in range(DEEPEST):
        below: list[Any] = []
        for node in level:
            found += 1
            if isinstance(node, str):
                found += len(node) // 64
            elif isinstance(node, Mapping):
                below += node.values()
            elif isinstance(node, list | tuple):
                below += node
            if found + len(below) > maximum:
                return maximum + 1
        if not below:
            return found
        level = below
    return maximum + 1

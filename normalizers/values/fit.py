"""Whether a value fits a JSON Schema: the keywords that say what a call's arguments look like.

A small, bounded check that needs the standard library alone. It knows types, enum, const, properties, required,
additionalProperties, items, anyOf, oneOf, allOf, local $ref, lengths and ranges. Keywords that it doesn't know, such as
pattern, never refuse a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from normalizers.values.coerce import accepts, json_type, resolve, type_name

_MAX_DEPTH = 32
_MAX_READ = 10_000
"""Schemas read for one value and its parts."""

Schema = Mapping[str, Any]


def fits(value: object, schema: Schema) -> bool:
    """False only if the schema certainly refuses the value."""
    return _Reading(schema).fits(value, schema, 0)


class _Reading:
    """The check of one value: each schema is read once for each part of the value, however many references lead there.

    A schema that leads back to itself asks for nothing more there.
    """

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._read: dict[tuple[int, int], bool] = {}

    def fits(self, value: object, schema: object, depth: int) -> bool:
        if schema is False:
            return False
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return True
        place = id(value), id(schema)
        found = self._read.get(place, len(self._read) >= _MAX_READ or None)
        if found is None:
            self._read[place] = True
            found = self._read[place] = self._fits(value, schema, depth + 1)
        return found

    def _fits(self, value: object, schema: Schema, depth: int) -> bool:
        def inner(value: object, schema: object) -> bool:
            return self.fits(value, schema, depth)

        if (target := resolve(schema, self._root)) is not None and not inner(value, target):
            return False
        return (
            _has_type(value, schema.get("type"))
            and _is_listed(value, schema)
            and all(inner(value, branch) for branch in _list(schema, "allOf"))
            and all(
                any(inner(value, branch) for branch in _list(schema, keyword))
                for keyword in ("anyOf", "oneOf")
                if _list(schema, keyword)
            )
            and _in_bounds(value, schema)
            and _members_fit(value, schema, inner)
        )


def _list(schema: Schema, keyword: str) -> Sequence[object]:
    found = schema.get(keyword)
    return found if isinstance(found, list | tuple) else ()


def _has_type(value: object, declared: object) -> bool:
    kinds = [declared] if isinstance(declared, str) else declared
    if not isinstance(kinds, list | tuple) or not kinds:
        return True
    known = frozenset(type_name(kind) for kind in kinds if isinstance(kind, str))
    if not known <= _TYPES:
        return True
    kind = json_type(value)
    whole = isinstance(value, float) and value.is_integer() and "integer" in known
    return accepts(known, kind) or whole


def _is_listed(value: object, schema: Schema) -> bool:
    if "const" in schema and not _same(value, schema["const"]):
        return False
    listed = schema.get("enum")
    return not isinstance(listed, list | tuple) or not listed or any(_same(value, each) for each in listed)


def _same(a: object, b: object) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)


_BOUNDS: tuple[tuple[str, Callable[[Any, Any], bool]], ...] = (
    ("minimum", lambda value, bound: value >= bound),
    ("maximum", lambda value, bound: value <= bound),
    ("exclusiveMinimum", lambda value, bound: value > bound),
    ("exclusiveMaximum", lambda value, bound: value < bound),
)
_SIZES = {str: ("minLength", "maxLength"), list: ("minItems", "maxItems"), dict: ("minProperties", "maxProperties")}


def _in_bounds(value: object, schema: Schema) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return all(holds(value, bound) for key, holds in _BOUNDS if _is_number(bound := schema.get(key)))
    for kind, (least, greatest) in _SIZES.items():
        if isinstance(value, kind):
            size = len(value)
            low, high = schema.get(least), schema.get(greatest)
            return not ((_is_number(low) and size < low) or (_is_number(high) and size > high))
    return True


def _is_number(bound: Any) -> bool:
    return isinstance(bound, int | float) and not isinstance(bound, bool)


def _members_fit(value: object, schema: Schema, inner: Callable[[object, object], bool]) -> bool:
    if isinstance(value, list):
        items = schema.get("items")
        return not isinstance(items, Mapping) or all(inner(item, items) for item in value)
    if not isinstance(value, dict):
        return True
    known = schema.get("properties")
    known = known if isinstance(known, Mapping) else {}
    if not all(key in value for key in _list(schema, "required") if isinstance(key, str)):
        return False
    others = True if schema.get("patternProperties") else schema.get("additionalProperties", True)
    return all(inner(member, known.get(key, others)) for key, member in value.items())


_TYPES = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})

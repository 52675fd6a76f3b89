"""Reading a JSON Schema for its grammar: references, merging, keywords. Odd schemas raise nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

ANY: Schema = {}
COMPOSED = ("anyOf", "oneOf")
_MAX_REFS = 16
_MAX_BRANCHES = 6


def parameters(function: Schema) -> Schema:
    """A tool's parameters, with a `$ref` or `allOf` at their top merged in."""
    schema = function.get("parameters")
    if not isinstance(schema, Mapping):
        return ANY
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return {**schema, **resolved(reference, schema)}
    if parts := items(schema, "allOf"):
        return merged(without(schema, "allOf"), *(target(part, schema) for part in parts))
    return schema


def properties(schema: Schema) -> Schema:
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else ANY


def items(schema: Schema, key: str) -> list[Any]:
    """A keyword's list; empty if it has none."""
    value = schema.get(key)
    return list(value) if isinstance(value, list | tuple) else []


def without(schema: Schema, *keys: str) -> Schema:
    return {name: value for name, value in schema.items() if name not in keys}


def resolved(reference: str, root: Schema) -> Schema:
    """The schema that a local reference names; any value if there is none."""
    node: object = root
    for part in reference.removeprefix("#").strip("/").split("/") if reference != "#" else ():
        part = part.replace("~1", "/").replace("~0", "~")
        node = node.get(part) if isinstance(node, Mapping) else None
    return node if isinstance(node, Mapping) else ANY


def target(schema: object, root: Schema) -> Schema:
    """The schema at the end of a chain of references."""
    for _ in range(_MAX_REFS):
        if not isinstance(schema, Mapping):
            return ANY
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        schema = resolved(reference, root)
    return ANY


def merged(base: Schema, *others: Schema) -> Schema:
    """One schema for several: properties and required keys add up, of any other keyword the last one holds."""
    found = dict(base)
    for other in others:
        both = {**properties(found), **properties(other)}
        required = items(found, "required")
        known = {key for key in required if isinstance(key, str)}
        required += [key for key in items(other, "required") if isinstance(key, str) and key not in known]
        found |= other
        if both:
            found["properties"] = both
        if required:
            found["required"] = required
    return found


def values(schema: Schema) -> list[Any]:
    """The only values that the schema accepts, by enum or const; empty if neither limits them."""
    return items(schema, "enum") or ([schema["const"]] if "const" in schema else [])


def strings(schema: object, root: Schema, depth: int = 0) -> list[Schema]:
    """The parts of a schema that accept strings. A schema that says nothing of its type is one of them."""
    found = target(schema, root)
    if only := values(found):
        return [{"enum": [value]} for value in only if isinstance(value, str)]
    parts: list[Schema] = []
    for keyword in COMPOSED:
        for branch in items(found, keyword):
            parts += strings(branch, root, depth + 1) if depth < _MAX_BRANCHES else []
    kinds = items(found, "type") or [found.get("type")]
    untyped = not any(key in found for key in ("type", "properties", "items", *COMPOSED))
    return [*parts, found] if "string" in kinds or untyped else parts


def not_strings(schema: object, root: Schema, depth: int = 0) -> Schema | None:
    """The schema without its strings; None if nothing is left."""
    found = target(schema, root)
    if only := values(found):
        others = [value for value in only if not isinstance(value, str)]
        return {"enum": others} if others else None
    for keyword in COMPOSED:
        if branches := items(found, keyword):
            if depth == _MAX_BRANCHES:
                return None
            left = [rest for branch in branches if (rest := not_strings(branch, root, depth + 1)) is not None]
            return {**without(found, keyword), "anyOf": left} if left else None
    kinds = items(found, "type")
    if "string" in kinds:
        others = [kind for kind in kinds if kind != "string"]
        return {**found, "type": others} if others else None
    return None if found.get("type") == "string" else found


def count(schema: Schema, key: str) -> int | None:
    """A keyword that counts, such as `minLength`."""
    value = schema.get(key)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None


def bound(schema: Schema, key: str, sign: int) -> tuple[float, bool] | None:
    """The tighter of `minimum` and `exclusiveMinimum` (`sign` 1) or of the maxima (-1), and whether it is exclusive."""
    found: list[tuple[float, bool]] = []
    exclusive = schema.get("exclusive" + key.capitalize())
    for value, is_open in ((schema.get(key), exclusive is True), (exclusive, True)):
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found.append((value, is_open))
    return max(found, key=lambda one: (sign * one[0], one[1])) if found else None

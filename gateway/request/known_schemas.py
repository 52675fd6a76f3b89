"""Rewrites JSON Schemas in the words that llama.cpp's grammars know: no schema that is true or false, and no reference
but a pointer below `#/` without escapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Raw

from gateway.wire.chat import decode, encode

Json = dict[str, Any]

_ONE = ("items", "contains", "not", "if", "then", "else", "propertyNames", "additionalProperties")
_LISTS = {"anyOf": False, "oneOf": False, "allOf": True, "prefixItems": None}
"""Keywords with lists of schemas, and the schema that adds nothing to it."""
_MAPS = {"properties": False, "patternProperties": None, "$defs": None, "definitions": None, "dependentSchemas": None}

DEEPEST = 200


def known_schemas(fields: Mapping[str, Raw]) -> dict[str, Raw]:
    """The fields `tools` and `response_format`, where schemas in them have others; {} if none has.

    What can't be said in those words stays, for llama.cpp to refuse.
    """
    found = {}
    if "tools" in fields:
        tools = decode(fields["tools"])
        if (rewritten := [_tool(tool) for tool in tools or ()]) and rewritten != tools:
            found["tools"] = Raw(encode(rewritten))
    format = decode(fields.get("response_format", b"null"))
    if isinstance(format, dict):
        held = format.get("json_schema")
        new = {**format, "json_schema": _with(held, "schema")} if isinstance(held, dict) else _with(format, "schema")
        if new != format:
            found["response_format"] = Raw(encode(new))
    return found


def _tool(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, dict) else None
    return {**tool, "function": _with(function, "parameters")} if isinstance(function, dict) else tool


def _with(holder: Json, name: str) -> Json:
    schema = holder.get(name)
    return {**holder, name: known(schema)} if isinstance(schema, dict) else holder


def known(schema: Json) -> Json:
    """A schema for the same values in those words."""
    return _Rewriting(schema).result()


class _Rewriting:
    def __init__(self, root: Json) -> None:
        self._root = root
        self._names: dict[int, str] = {}
        self._moving: list[tuple[str, Json]] = []
        """Schemas that references with unknown words lead to, and their new names in `$defs`."""

    def result(self) -> Json:
        found = self._object(self._root, 0)
        moved = {}
        while self._moving:
            name, schema = self._moving.pop()
            moved[name] = self._object(schema, 0)  # it may refer to others
        return {**found, "$defs": {**found.get("$defs", {}), **moved}} if moved else found

    def _schema(self, schema: Any, depth: int) -> Any:
        if schema is True:
            return {}
        return self._object(schema, depth) if isinstance(schema, dict) and depth <= DEEPEST else schema

    def _object(self, schema: Json, depth: int) -> Json:
        found = dict(schema)
        if isinstance(reference := schema.get("$ref"), str):
            found["$ref"] = self._reference(reference)
        for name in _ONE:
            if name in found and not (name == "additionalProperties" and isinstance(found[name], bool)):
                found[name] = self._schema(found[name], depth + 1)
        for name, idle in _LISTS.items():
            if isinstance(found.get(name), list):
                found[name] = [self._schema(part, depth + 1) for part in found[name] if part is not idle]
        for name, idle in _MAPS.items():
            if isinstance(found.get(name), dict):
                found[name] = {
                    key: self._schema(value, depth + 1) for key, value in found[name].items() if value is not idle
                }
        return _simple(found)

    def _reference(self, reference: str) -> str:
        if reference != "#" and not (reference.startswith("#/") and "~" in reference):
            return reference
        target = self._target(reference)
        if target is None:
            return reference
        name = self._names.get(id(target))
        if name is None:
            taken = self._root.get("$defs")
            name = f"ref{len(self._names)}"
            while isinstance(taken, dict) and name in taken:
                name += "_"
            self._names[id(target)] = name
            own = {key: value for key, value in target.items() if target is not self._root or key not in _DEFINITIONS}
            self._moving.append((name, own))
        return f"#/$defs/{name}"

    def _target(self, pointer: str) -> Json | None:
        """The object that it names; None if it names none here."""
        node: Any = self._root
        for part in pointer.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, list):
                node = node[int(part)] if part.isdecimal() and len(part) < 9 and int(part) < len(node) else None
            else:
                node = node.get(part) if isinstance(node, dict) else None
        return node if isinstance(node, dict) else None


def _simple(schema: Json) -> Json:
    """Without `items: false`, and with a lone part of `allOf` merged in: llama.cpp reads objects there alone."""
    parts = schema.get("allOf")
    if isinstance(parts, list) and len(parts) < 2:
        part = parts[0] if parts else {}
        if isinstance(part, dict) and not part.keys() & schema.keys():
            schema = {**{name: value for name, value in schema.items() if name != "allOf"}, **part}
    if schema.get("items") is False:
        none: Json = {"type": "array", "items": {"type": "null"}, "maxItems": 0}
        others = {name: value for name, value in schema.items() if name != "items"}
        schema = others if "prefixItems" in schema else {**others, **none}
    return schema


_DEFINITIONS = ("$defs", "definitions", "$id", "$schema")

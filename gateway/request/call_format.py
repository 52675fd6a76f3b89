"""The JSON Schema of a tool call, with which a server that holds to `response_format` can be made to call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.request.grammars import tool_name
from gateway.wire.chat import decode, encode

Json = dict[str, Any]

DROPPED = ("not", "uniqueItems")
"""Keywords for which engines drop a whole schema. What they forbid is left to the check of the answer."""


def call_format(tools: bytes, must: tuple[str, ...]) -> bytes:
    """The `response_format` of a call of one of the tools, as JSON. tools: JSON. must: their names; () means any."""
    schemas: list[Json] = []
    defs: Json = {}
    for at, tool in enumerate(decode(tools)):
        name = tool_name(tool)
        if must and name not in must:
            continue
        function = tool.get("function", tool)
        arguments = function.get("parameters")
        arguments = {"type": "object", **(arguments if isinstance(arguments, Mapping) else {})}
        place = f"tool{at}"
        arguments = _moved(arguments, f"#/$defs/{place}", root=arguments)
        if b'"$ref"' in encode(arguments):
            # References are read from the root of the whole schema.
            defs[place], arguments = arguments, {"$ref": f"#/$defs/{place}"}
        schemas.append({
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": arguments},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        })  # fmt: skip
    schema = {**(schemas[0] if len(schemas) == 1 else {"anyOf": schemas}), **({"$defs": defs} if defs else {})}
    return encode({"type": "json_schema", "json_schema": {"name": "call", "schema": schema}})


def _moved(schema: Any, place: str, root: Any) -> Any:
    """The schema without what engines drop, its references to itself moved to `place`."""
    if isinstance(schema, list):
        return [_moved(one, place, root) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    made: Json = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str):
            if not _resolves(value, root):
                continue
            made[key] = f"{place}{value[1:]}"
        elif key in ("properties", "$defs", "definitions", "patternProperties") and isinstance(value, Mapping):
            made[key] = {name: _moved(one, place, root) for name, one in value.items()}
        elif key in ("enum", "const", "default", "examples"):
            made[key] = value
        elif key not in DROPPED:
            made[key] = _moved(value, place, root)
    return made


def _resolves(reference: str, root: Any) -> bool:
    """Whether the reference is to something within the schema."""
    found = root
    for step in filter(None, reference.removeprefix("#").split("/")):
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return reference.startswith("#") and isinstance(found, Mapping)

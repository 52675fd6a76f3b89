"""JSON Schemas as the provider contract uses them: their root is an object."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from gateway.errors import ProviderInvalidRequest
from gateway.schema.checker import compiled
from gateway.schema.fault import Unchecked
from gateway.schema.jsontext import dump_json

# What OpenAI's strict decoding understands; a schema with any other keyword is sent with strict: false (§8.1.5).
# fmt: off
_STRICT_KEYWORDS = frozenset({
    "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "$ref", "$defs",
    "definitions", "title", "description", "pattern", "format", "multipleOf", "minimum", "maximum",
    "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems",
})
# fmt: on
_NAME = re.compile(r"[^A-Za-z0-9_-]+")
_LONGEST_REASON = 500


class ObjectSchema:
    """A valid JSON Schema whose root is an object, as it was when the call was made.

    Raises ProviderInvalidRequest, naming the argument `where`, for anything else: also for a reference that leads out
    of the schema, since we never fetch one.
    """

    __slots__ = ("_checker", "schema", "text")

    def __init__(self, schema: Mapping[str, Any], where: str) -> None:
        if not isinstance(schema, Mapping):
            raise ProviderInvalidRequest(f"{where} must be a JSON Schema, not {type(schema).__name__}", param=where)
        if schema.get("type") != "object":
            raise ProviderInvalidRequest(f'{where} must be an object schema: {{"type": "object", …}}', param=where)
        try:
            self.text = dump_json(schema)
            self._checker = compiled(self.text)
        except ValueError as error:
            raise ProviderInvalidRequest(f"{where} is not a valid JSON Schema: {_short(error)}", param=where) from error
        except Unchecked as error:
            raise ProviderInvalidRequest(f"{where} can't be checked: {error}", param=where) from error
        self.schema = schema

    def violation(self, value: Any) -> str | None:
        """Why `value` doesn't conform, beginning with the JSON Pointer of the place; None if it does."""
        try:
            fault = self._checker.fault(value)
        except Unchecked as error:
            raise ProviderInvalidRequest(f"the schema can't be checked: {error}") from error
        return None if fault is None else f"{fault.pointer or 'the value'}: {_short(fault.message)}"

    def strict(self) -> bool:
        """Whether OpenAI's strict decoding takes it: closed objects, every property required (§8.1.5)."""
        return "anyOf" not in self.schema and _strict(self.schema)

    def name(self) -> str:
        """A name for the wire that stays the same as long as the schema does (§8.1.5)."""
        title = _NAME.sub("_", str(self.schema.get("title", ""))).strip("_")[:64]
        return title or f"schema_{hashlib.sha256(self.text.encode()).hexdigest()[:16]}"


def _strict(schema: object) -> bool:
    if not isinstance(schema, Mapping) or not _STRICT_KEYWORDS.issuperset(schema):
        return False
    properties = schema.get("properties", {})
    if schema.get("type") == "object" or "properties" in schema:
        closed = schema.get("additionalProperties") is False
        if not closed or set(schema.get("required", ())) != set(properties):
            return False
    parts = [*properties.values(), *schema.get("anyOf", ()), *schema.get("$defs", {}).values()]
    parts += [*schema.get("definitions", {}).values(), *([schema["items"]] if "items" in schema else [])]
    return all(_strict(part) for part in parts)


def _short(error: object) -> str:
    text = str(error).partition("\n")[0]
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"

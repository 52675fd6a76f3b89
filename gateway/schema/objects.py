"""JSON Schema as the contract uses it: object schemas, closed in themselves, checked by `jsonschema`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gateway.errors import ProviderInvalidRequest
from gateway.schema import worker
from gateway.schema.jsontext import dump_json

if TYPE_CHECKING:
    from jsonschema.protocols import Validator
    from referencing import Resource
    from referencing._core import Resolver

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
    """A valid JSON Schema whose root is an object, as it stood when the call was made.

    Raises ProviderInvalidRequest, naming the argument `where`, for anything else: also for a reference
    that leads out of the schema, since nothing is ever fetched to resolve one.
    """

    __slots__ = ("_validator", "schema", "text")

    def __init__(self, schema: Mapping[str, Any], where: str) -> None:
        if not isinstance(schema, Mapping):
            raise ProviderInvalidRequest(f"{where} must be a JSON Schema, not {type(schema).__name__}", param=where)
        if schema.get("type") != "object":
            raise ProviderInvalidRequest(f'{where} must be an object schema: {{"type": "object", …}}', param=where)
        try:
            self.text = dump_json(schema)
            self._validator = _validator(self.text)
        except (ValueError, RecursionError, OverflowError) as error:
            raise ProviderInvalidRequest(f"{where} is not a valid JSON Schema: {_short(error)}", param=where) from error
        self.schema = schema

    def violation(self, value: Any) -> str | None:
        """Why `value` doesn't conform, beginning with the JSON Pointer of the place; None if it does."""
        from referencing.exceptions import Unresolvable

        try:
            fault = worker.violation(self.text, self._validator, value)
        except RecursionError:
            return "the value or its schema is nested too deeply to be checked"
        except Unresolvable as error:
            raise ProviderInvalidRequest(f"the schema's reference {error.ref!r} leads nowhere inside it") from error
        except worker.Unchecked as error:
            raise ProviderInvalidRequest(f"the schema can't be checked: {error}") from error
        if fault is None:
            return None
        pointer = "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in fault.path)
        return f"{pointer or 'the value'}: {_short(fault)}"

    def strict(self) -> bool:
        """Whether OpenAI's strict decoding takes it: closed objects, every property required (§8.1.5)."""
        return "anyOf" not in self.schema and _strict(self.schema)

    def name(self) -> str:
        """A name for the wire that stays the same as long as the schema does (§8.1.5)."""
        title = _NAME.sub("_", str(self.schema.get("title", ""))).strip("_")[:64]
        return title or f"schema_{hashlib.sha256(self.text.encode()).hexdigest()[:16]}"


@lru_cache(maxsize=256)
def _validator(text: str) -> Validator:
    """Compiled once for each text: agents send the same tools with every call. ValueError for a bad schema."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for
    from referencing import Registry, Resource
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    schema = json.loads(text)
    if not isinstance(schema.get("$schema", ""), str):
        raise ValueError("$schema is no string")
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"{error.json_path}: {error.message}") from error
    # An empty registry: the default one would fetch unknown references over the network.
    registry: Registry[Any] = Registry()
    root = Resource.from_contents(schema, default_specification=DRAFT202012)
    try:
        _resolve(root, registry.resolver_with_root(root))
    except Unresolvable as error:
        raise ValueError(f"the reference {error.ref!r} leads nowhere inside it") from error
    return kind(schema, registry=registry)


def _resolve(resource: Resource[Any], resolver: Resolver[Any]) -> None:
    """Looks up every reference once, so that a dangling one is found before a call is paid for."""
    if isinstance(resource.contents, Mapping) and isinstance(reference := resource.contents.get("$ref"), str):
        resolver.lookup(reference)
    for part in resource.subresources():
        _resolve(part, resolver.in_subresource(part))


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
    text = str(getattr(error, "message", error)).partition("\n")[0]
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"

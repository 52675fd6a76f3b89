"""The types of OpenAI's and Anthropic's own packages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any

from pydantic import TypeAdapter


@cache
def published(name: str) -> TypeAdapter[Any]:
    """name: as in `openai.types.chat:ChatCompletion`. Imported late, because it takes seconds."""
    module, _, kind = name.partition(":")
    return TypeAdapter(getattr(import_module(module), kind))


def check(name: str, value: Any) -> None:
    """Strictly: no number may come as text."""
    published(name).validate_json(json.dumps(value), strict=True)


def kinds(name: str) -> set[str]:
    """The types of the objects in a union, as in `anthropic.types.beta:BetaToolUnionParam`."""
    schema = published(name).json_schema()
    return set(_kinds(schema, schema.get("$defs", {})))


def _kinds(schema: dict[str, Any], named: dict[str, Any]) -> Iterator[str]:
    schema = named[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    for each in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _kinds(each, named)
    if (kind := schema.get("properties", {}).get("type")) is not None:
        yield from kind.get("enum", [kind["const"]] if "const" in kind else ())

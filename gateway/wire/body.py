"""Decodes and validates a request's body."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec import inspect

from gateway.errors import ProviderInvalidRequest
from gateway.wire.values import MOST_VALUES, check

T = TypeVar("T")


def read(decoder: msgspec.json.Decoder[T], body: bytes, most: int = MOST_VALUES) -> T:
    """Returns the decoded body. most: values that it may have. Raises ProviderInvalidRequest, which names the invalid
    field."""
    try:
        check(body, most)
        return decoder.decode(body)
    except (ValueError, RecursionError) as error:  # msgspec's errors and UnicodeDecodeError are ValueErrors
        raise _invalid(error, decoder.type) from None


def _invalid(error: Exception, kind: object) -> ProviderInvalidRequest:
    """The client's error for a body that doesn't decode as `kind`."""
    if isinstance(error, msgspec.ValidationError):
        reason, _, where = str(error).partition(" - at `$")
        param = where.rstrip("`").lstrip(".") or None
        place = f"{param}: " if param else "the request body: "
        if reason.startswith("Invalid ") and (values := _allowed(kind, param or "")):
            reason += f"; allowed: {', '.join(map(str, values))}"
        return ProviderInvalidRequest(f"{place}{reason[:1].lower()}{reason[1:]}", param=param)
    if isinstance(error, UnicodeDecodeError):
        return ProviderInvalidRequest("the request body is not valid UTF-8")
    if isinstance(error, RecursionError):
        return ProviderInvalidRequest("the request body is not valid: it is nested too deeply")
    return ProviderInvalidRequest(f"the request body is not valid JSON: {error}")


def _allowed(kind: object, place: str) -> list[object]:
    """The literal values allowed at a path in msgspec's notation (`a.b[0]`); [] if that place takes no literals."""
    found = [inspect.type_info(kind)]
    for step in re.sub(r"\[[^]]*\]", ".[", place).split("."):
        found = [inner for outer in found for one in _members(outer) for inner in _within(one, step)]
    literals = [one for outer in found for one in _members(outer) if isinstance(one, inspect.LiteralType)]
    return [value for literal in literals for value in literal.values]


def _members(kind: inspect.Type) -> Sequence[inspect.Type]:
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def _within(kind: inspect.Type, step: str) -> list[inspect.Type]:
    """The types one step down. step: a field's name, or `[` for a list's items."""
    if isinstance(kind, inspect.ListType):
        return [kind.item_type] if step == "[" else []
    if not isinstance(kind, inspect.StructType):
        return []
    if step == kind.tag_field:
        return [inspect.LiteralType((kind.tag,))]
    return [field.type for field in kind.fields if field.encode_name == step]

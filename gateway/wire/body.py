"""Decodes and validates a request's body."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, inspect

from gateway.errors import ProviderInvalidRequest
from gateway.wire.nulls import without_nulls
from gateway.wire.values import MAX_VALUES, check, check_texts, check_width

T = TypeVar("T")

TOLD_CHARS = 1000
"""The most of an invalid value that an error tells."""

LONGEST_NAME = 4096
Name = Annotated[str, Meta(max_length=LONGEST_NAME)]
"""Of a model or a tool: errors, logs and grammars repeat it. As long as a path."""

Stop = Annotated[str, Meta(min_length=1)]
"""A sequence that ends an answer. An empty one would end each before its first word."""

LONGEST_ID = 65536
"""Characters of a call's id: some programs put the signature of a thought there."""


def check_id(id: str, place: str) -> str:
    """The id of a call. place: its field. Raises ProviderInvalidRequest if it is too long."""
    if len(id) > LONGEST_ID:
        raise ProviderInvalidRequest(f"{place}: has over {LONGEST_ID} characters", param=place)
    return id


def read(decoder: msgspec.json.Decoder[T], body: bytes, maximum: int = MAX_VALUES, *, nulls: bool = False) -> T:
    """Returns the decoded body; a field that is null is absent. maximum: values that it may have.

    nulls: null is a value, as in a change that clears a field and in records.
    Raises ProviderInvalidRequest, which names the invalid field.
    """
    try:
        check(body, maximum)
        if maximum > MAX_VALUES:
            check_texts(body)
        check_width(body)
        return decoder.decode(body if nulls else without_nulls(body))
    except (ValueError, RecursionError) as error:  # msgspec's errors and UnicodeDecodeError are ValueErrors
        raise _invalid(error, decoder.type) from None


def check_stop(given: Any, place: str) -> None:
    """Raises ProviderInvalidRequest for stop sequences that `Stop` doesn't allow. place: of the field."""
    try:
        msgspec.convert(given, Stop | list[Stop] | None)
    except msgspec.ValidationError as error:
        raise misfit(error, place) from None


def misfit(error: msgspec.ValidationError, root: str = "", kind: object = None) -> ProviderInvalidRequest:
    """The client's error for a field of the wrong type, or for one that is missing. Names the field.

    root: the field that was decoded; "" for the whole body. kind: what it was decoded as, to tell the allowed values.
    """
    reason, _, where = told(error).partition(" - at `$")
    place = (root + where.rstrip("`")).lstrip(".")
    param = f"{place}.{missing[1]}".lstrip(".") if (missing := _missing(reason)) else place
    if kind is not None and reason.startswith("Invalid ") and (values := _allowed(kind, place)):
        reason += f"; allowed: {', '.join(map(str, values))}"
    return ProviderInvalidRequest(
        f"{param or 'the request body'}: {reason[:1].lower()}{reason[1:]}", param=param or None
    )


def told(error: msgspec.ValidationError) -> str:
    """Its text. msgspec's holds the whole of a wrong value or an unknown key; here it is at most TOLD_CHARS long."""
    text = str(error)
    return text if len(text) <= TOLD_CHARS else f"{text[: TOLD_CHARS // 2]}…{text[1 - TOLD_CHARS // 2 :]}"


def invalid_form(reason: Exception) -> ProviderInvalidRequest:
    """reason: a `gateway.features.media.wire.form.BadForm`."""
    return ProviderInvalidRequest(f"the request body is not valid multipart/form-data: {reason}")


_missing = re.compile(r"Object missing required field `(\w+)`").match


def _invalid(error: Exception, kind: object) -> ProviderInvalidRequest:
    """The client's error for a body that doesn't decode as `kind`."""
    if isinstance(error, msgspec.ValidationError):
        return misfit(error, kind=kind)
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

"""What the gateway reads of requests that it passes on. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.errors import ProviderInvalidRequest
from gateway.wire import body
from gateway.wire.body import Name
from gateway.wire.nulls import read_fields
from gateway.wire.values import MAX_TOKENS

T = TypeVar("T")

MAX_PICTURES = 10
"""OpenAI's limit."""


class Named(Struct):
    """Any request."""

    model: Name | None = None
    service_tier: str | None = None
    stream: bool | None = None


class CreateSpeech(Named, kw_only=True):
    input: Annotated[str, Meta(min_length=1)]
    voice: str | dict[str, Any] | None = None
    instructions: str | None = None
    response_format: str | None = None
    speed: float | None = None
    stream_format: str | None = None


class CreateImage(Named, kw_only=True):
    prompt: Annotated[str, Meta(min_length=1)]
    n: Annotated[int, Meta(ge=1, le=MAX_PICTURES)] | None = None
    size: str | None = None
    response_format: str | None = None


def parse(decoder: msgspec.json.Decoder[T], data: bytes) -> tuple[T, dict[str, Raw]]:
    """A request, and its fields for an engine. Raises ProviderInvalidRequest."""
    return body.read(decoder, data, MAX_TOKENS), read_fields(data)[0]


def parser(kind: type[T]) -> Callable[[bytes], tuple[T, dict[str, Raw]]]:
    decoder = msgspec.json.Decoder(kind)
    return lambda data: parse(decoder, data)


def pictures(written: str | None) -> int:
    """How many pictures a form asks for. Raises ProviderInvalidRequest."""
    if written is None:
        return 1
    if written not in map(str, range(1, MAX_PICTURES + 1)):  # the engine gets it as it is written
        raise ProviderInvalidRequest(f"n: must be a whole number from 1 to {MAX_PICTURES}", param="n")
    return int(written)


def texts(fields: Mapping[str, Raw]) -> dict[str, str]:
    """JSON fields as those of a form: a string as it is, anything else as JSON."""
    found = {}
    for name, raw in fields.items():
        value = msgspec.json.decode(raw)
        found[name] = value if isinstance(value, str) else bytes(raw).decode()
    return found

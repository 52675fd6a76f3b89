"""`POST /v1/completions`: the request."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct

from gateway.errors import ProviderInvalidRequest
from gateway.wire import body


class _StreamOptions(Struct):
    include_usage: bool | None = None


class Known(Struct):
    """The fields whose types the gateway validates before it asks an engine."""

    prompt: str | list[str | int | list[int]]
    model: str | None = None
    suffix: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    best_of: int | None = None
    logprobs: int | None = None
    echo: bool | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, Any] | None = None
    seed: int | None = None


class CreateCompletion(Struct):
    """fields: every field of the request as JSON, unknown ones included."""

    model: str | None
    stream: bool
    fields: dict[str, Raw]

    @classmethod
    def parse(cls, data: bytes) -> CreateCompletion:
        """Raises ProviderInvalidRequest, which names the invalid field."""
        known = body.read(_known_decoder, data)
        if not known.prompt:
            raise ProviderInvalidRequest("prompt: must not be empty", param="prompt")
        return cls(known.model, bool(known.stream), _decode_fields(data))


_known_decoder = msgspec.json.Decoder(Known)
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode

"""Collects a stream's chunks into the whole answer that they are.

An engine that streams notices at each token whether its client has left, and its chunks show that it makes progress.
llama.cpp looks after the client of a whole answer once a second or not at all, so we always ask it for a stream.
"""

from __future__ import annotations

import msgspec

from gateway.errors import ProviderInvalidResponse, ProviderUnavailable
from gateway.upstream import MAX_BODY
from gateway.wire.chat import decode, encode
from gateway.wire.fold import Fold

ASKED = {"stream": msgspec.Raw(b"true"), "stream_options": msgspec.Raw(b'{"include_usage":true}')}
"""Request fields."""


class Collector:
    """Feed it the payloads of a chat's stream, then take the `body`."""

    def __init__(self) -> None:
        self._fold = Fold()
        self._size = 0

    def feed(self, payload: bytes) -> bool:
        """Returns False for an error, which then is the whole answer. Raises ProviderInvalidResponse."""
        self._size += len(payload)
        if self._size > MAX_BODY:
            raise ProviderInvalidResponse(f"the engine's answer exceeds {MAX_BODY} bytes")
        try:
            chunk = decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProviderInvalidResponse(f"the engine sent a malformed chunk: {error}") from error
        if isinstance(chunk, dict) and chunk.get("error") is not None:
            return False
        self._fold.add(chunk)
        return True

    def body(self, *, done: bool) -> bytes:
        """done: the stream ended with its end mark. Raises ProviderUnavailable for a stream that broke off."""
        if not done and not all(choice.finish_reason for choice in self._fold.choices.values()):
            raise ProviderUnavailable("the engine's answer ended in the middle", status=502)
        return encode(self._fold.body())

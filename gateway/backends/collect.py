"""Collects a stream's chunks into a whole answer.

A streaming engine notices at each token that its client left, and its chunks prove progress. For a whole answer
llama.cpp checks its client once a second or never, so the gateway always asks it for a stream.
"""

from __future__ import annotations

from msgspec import Raw

from gateway.backends.base import Reply
from gateway.errors import ProviderInvalidResponse, ProviderUnavailable
from gateway.upstream import MAX_BODY
from gateway.wire.chat import decode, decode_chunk, encode
from gateway.wire.fold import Fold, Json
from gateway.wire.lenient import BROKEN
from gateway.wire.shape import Repairs

STREAM_FIELDS = {"stream": Raw(b"true"), "stream_options": Raw(b'{"include_usage":true}')}
"""Request fields that turn a whole answer into a stream with usage."""


class Collector:
    """Takes the payloads of a chat stream, then returns the `body`."""

    def __init__(self) -> None:
        self._fold = Fold()
        self._size = 0
        self._repairs: Repairs | None = None
        """Reads the payloads from the first one that has to be repaired."""

    def feed(self, payload: bytes) -> bool:
        """Returns False for an error payload, which replaces the answer. Raises ProviderInvalidResponse."""
        self._size += len(payload)
        if self._size > MAX_BODY:
            raise ProviderInvalidResponse(f"the engine's answer exceeds {MAX_BODY} bytes")
        chunk = self._read(payload)
        if chunk.get("error") is not None:
            return False
        self._fold.add(chunk)
        return True

    def _read(self, payload: bytes) -> Json:
        if self._repairs is None:
            try:
                decode_chunk(payload)  # only for its shape
                found: Json = decode(payload)
            except BROKEN:
                self._repairs = Repairs("")
            else:
                return found
        return self._repairs.chunk(payload)

    def body(self, *, done: bool) -> bytes:
        """done: the stream ended with `[DONE]`. Raises ProviderUnavailable for a truncated stream."""
        for chunk in self._repairs.rest() if self._repairs is not None else ():
            self._fold.add(chunk)
        if not done and not all(choice.finish_reason for choice in self._fold.choices.values()):
            raise ProviderUnavailable("the engine's answer ended in the middle", status=502)
        return encode(self._fold.body())


async def collected(reply: Reply) -> bytes:
    """The whole answer of a stream's reply. Raises as `Reply.payloads` and `Collector` do."""
    collector = Collector()
    while payloads := await reply.payloads():
        for payload in payloads:
            if not collector.feed(payload):
                return payload
    return collector.body(done=reply.done)

"""ASGI's types, a request's body within bounds, and work that ends when its client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from gateway.errors import ProviderInvalidRequest

BODY_SECONDS = 60
"""For each further piece of a request's body."""
LIMITED_BY = "server.max_body_bytes"

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]


class ClientGone(Exception):
    """The client left before its request was read."""


class EncodedBody(ProviderInvalidRequest):
    """Nobody unpacks bodies here: what becomes of a small one can be larger than any limit."""

    def __init__(self, coding: str) -> None:
        message = f"Content-Encoding: {coding[:80]}: bodies are read as they are; send it plain, without this header"
        super().__init__(message, code="unsupported_content_encoding", status=415)

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*super().headers(), (b"accept-encoding", b"identity")]


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """At most `limit` bytes.

    Raises what `check_head` raises, ProviderInvalidRequest (408) where nothing more comes, and ClientGone.
    """
    parts: list[bytes] = []
    check_head(scope["headers"], limit)
    size = 0
    while True:
        async with body_deadline():
            message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise too_large(limit)
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


@asynccontextmanager
async def body_deadline() -> AsyncIterator[None]:
    """Raises ProviderInvalidRequest (408) when the next piece of a request's body does not come."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            yield
    except TimeoutError:
        message = f"the rest of the request body did not come within {BODY_SECONDS} s"
        raise ProviderInvalidRequest(message, code="request_timeout", status=408) from None


def check_encoding(headers: Headers) -> None:
    """Raises EncodedBody (415) for a body that says it is compressed."""
    for name, value in headers:
        if name == b"content-encoding" and value.lower() not in (b"", b"identity"):
            raise EncodedBody(value.decode("latin-1"))


def check_head(headers: Headers, limit: int) -> None:
    """Raises ProviderInvalidRequest for a body that says it is too large (413) or compressed, before it is read."""
    check_encoding(headers)
    for name, value in headers:
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise too_large(limit)


def too_large(limit: int, by: str = LIMITED_BY) -> ProviderInvalidRequest:
    """by: what sets the limit."""
    return ProviderInvalidRequest(
        f"the request body exceeds {limit} bytes ({by})", code="request_too_large", status=413
    )


async def until_gone(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Runs `work`, cancelled once the client leaves; its request has been read."""
    task = asyncio.current_task()
    assert task is not None
    gone = asyncio.ensure_future(_cancel_when_gone(receive, task))
    try:
        await work
    except asyncio.CancelledError:
        if not gone.done():
            raise  # the server is shutting down
    finally:
        gone.cancel()


async def _cancel_when_gone(receive: Receive, task: asyncio.Task[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    task.cancel()

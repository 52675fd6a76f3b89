"""ASGI's types, one bounded reader of request bodies, and work that ends when its client leaves."""

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
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]


class ClientGone(Exception):
    """The client left before it had sent its whole request."""


class MethodNotAllowed(ProviderInvalidRequest):
    """A 405; its `Allow` header and its message name the methods that the path has."""

    def __init__(self, method: str, path: str, allowed: Sequence[str]) -> None:
        self.allowed = ", ".join(allowed)
        message = f"{method} {path}: use {' or '.join(allowed)}"
        super().__init__(message, code="method_not_allowed", status=405)

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*super().headers(), (b"allow", self.allowed.encode())]


class EncodedBody(ProviderInvalidRequest):
    """A 415 for a compressed body. The gateway never decompresses: a small body can unpack to any size."""

    def __init__(self, coding: str) -> None:
        message = f"Content-Encoding: {coding[:80]}: send the body uncompressed and without this header"
        super().__init__(message, code="unsupported_content_encoding", status=415)

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*super().headers(), (b"accept-encoding", b"identity")]


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body, at most `limit` bytes.

    Raises what `check_head` raises, ProviderInvalidRequest (408) if the client stops sending, and ClientGone.
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
    """Raises ProviderInvalidRequest (408) if the next piece of a request's body takes over BODY_SECONDS."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            yield
    except TimeoutError:
        message = f"the rest of the request body did not come within {BODY_SECONDS} s"
        raise ProviderInvalidRequest(message, code="request_timeout", status=408) from None


def check_encoding(headers: Headers) -> None:
    """Raises EncodedBody (415) if the headers announce a compressed body."""
    for name, value in headers:
        if name == b"content-encoding" and value.lower() not in (b"", b"identity"):
            raise EncodedBody(value.decode("latin-1"))


def check_head(headers: Headers, limit: int) -> None:
    """Raises ProviderInvalidRequest if the headers announce a body that is too large (413) or compressed (415)."""
    check_encoding(headers)
    for name, value in headers:
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise too_large(limit)


def too_large(limit: int, by: str = LIMITED_BY) -> ProviderInvalidRequest:
    """by: the setting or rule that sets the limit."""
    return ProviderInvalidRequest(
        f"the request body exceeds {limit} bytes ({by})", code="request_too_large", status=413
    )


def not_found(method: str, path: str) -> ProviderInvalidRequest:
    return ProviderInvalidRequest(f"{method} {path}: no such endpoint", code="not_found", status=404)


async def until_gone(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Runs `work` and cancels it when the client leaves. The request's body must have been read."""
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

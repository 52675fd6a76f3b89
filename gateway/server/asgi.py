"""ASGI's types, what a request's head announces, and work that ends when its client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from gateway.errors import ProviderInvalidRequest

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


def check_encoding(headers: Headers) -> None:
    """Raises EncodedBody (415) if the headers announce a compressed body."""
    for name, value in headers:
        if name == b"content-encoding" and value.lower() not in (b"", b"identity"):
            raise EncodedBody(value.decode("latin-1"))


def check_head(headers: Headers, limit: int, by: str = LIMITED_BY) -> None:
    """Raises ProviderInvalidRequest if the headers announce a body that is too large (413) or compressed (415). by: the
    setting that sets the limit."""
    check_encoding(headers)
    for name, value in headers:
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise too_large(limit, by)


def too_large(limit: int, by: str = LIMITED_BY) -> ProviderInvalidRequest:
    """by: the setting or rule that sets the limit."""
    return ProviderInvalidRequest(
        f"the request body exceeds {limit} bytes ({by})", code="request_too_large", status=413
    )


def not_found(method: str, path: str) -> ProviderInvalidRequest:
    return ProviderInvalidRequest(f"{method} {path}: no such endpoint", code="not_found", status=404)


async def until_gone(work: Awaitable[None], receive: Receive) -> None:
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

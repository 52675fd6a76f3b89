"""`POST /v1/chat/completions`: the hot route, plain ASGI."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from gateway.core import Gateway, Run
from gateway.errors import GatewayError, InternalError, ProviderInvalidRequest
from gateway.wire.chat import ChatRequest, encode
from gateway.wire.sse import DONE, event

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

log = logging.getLogger("ctxgate")

JSON_HEADERS = [(b"content-type", b"application/json")]
SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class ClientGone(Exception):
    """The client left before its request was read."""


class Chat:
    """The endpoint. A client that leaves cancels the engine's work, for streamed and whole answers alike."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._max_body = gateway.config.server.max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            request = ChatRequest.parse(await read_body(scope, receive, self._max_body))
        except ClientGone:
            return
        task = asyncio.current_task()
        assert task is not None
        gone = asyncio.ensure_future(_cancel_when_gone(receive, task))
        try:
            with await self._gateway.chat(request) as run:
                if request.stream:
                    await _stream(run, send)
                else:
                    await respond(send, 200, await run.whole())
        except asyncio.CancelledError:
            if not gone.done():
                raise  # the server is shutting down
        finally:
            gone.cancel()


async def _stream(run: Run, send: Send) -> None:
    """An error before the first payload is the caller's; after it, a frame of the stream and then its end mark."""
    payloads = await run.payloads()
    await send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
    try:
        while payloads:
            body = event(payloads[0]) if len(payloads) == 1 else b"".join(map(event, payloads))
            await send({"type": "http.response.body", "body": body, "more_body": True})
            payloads = await run.payloads()
        last = DONE
    except GatewayError as error:
        last = event(encode(error.body())) + DONE
    except Exception:
        log.exception("a stream of model %s broke", run.model.name)
        last = event(encode(INTERNAL.body())) + DONE
    await send({"type": "http.response.body", "body": last})


async def _cancel_when_gone(receive: Receive, task: asyncio.Task[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    task.cancel()


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The request's body. Raises ProviderInvalidRequest (413) above `limit` bytes, before reading it where it can."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise _too_large(limit)
    body = b""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body = message.get("body", b"")
        if not message.get("more_body") and not parts:
            return bytes(body)
        size += len(body)
        if size > limit:
            raise _too_large(limit)
        parts.append(body)
        if not message.get("more_body"):
            return b"".join(parts)


def _too_large(limit: int) -> ProviderInvalidRequest:
    return ProviderInvalidRequest(
        f"the request body exceeds {limit} bytes (server.max_body_bytes)", code="request_too_large", status=413
    )


async def respond(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    """A whole JSON response."""
    length = (b"content-length", b"%d" % len(body))
    head = [*JSON_HEADERS, *(headers or ()), length]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def respond_error(send: Send, error: GatewayError) -> None:
    await respond(send, error.status, encode(error.body()), error.headers())


INTERNAL = InternalError("ctxgate failed; its log tells why")

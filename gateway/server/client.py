"""Where an answer goes: a client behind any ASGI server, or behind the fast protocol."""

from __future__ import annotations

from typing import Protocol

from gateway.errors import GatewayError, InternalError
from gateway.server.asgi import Headers, Send
from gateway.wire.chat import encode
from gateway.wire.sse import Sink

JSON_TYPE = (b"content-type", b"application/json")
INTERNAL = InternalError("ctxgate failed; its log tells why")


class Client(Protocol):
    """Takes one answer. `write` waits while the client lags. wrote: each write of a stream sets it."""

    wrote: bool

    async def whole(self, status: int, headers: Headers, body: bytes) -> None: ...

    async def start(self, headers: Headers) -> None: ...

    async def write(self, data: bytes) -> None: ...

    async def end(self, data: bytes) -> None: ...

    def sink(self) -> Sink | None:
        """A way to write without waiting, if the server has one."""
        ...


async def respond_error(client: Client, error: GatewayError, more: Headers = ()) -> None:
    """more: headers besides the error's own."""
    await client.whole(error.status, (JSON_TYPE, *error.headers(), *more), encode(error.body()))


class ASGIClient:
    def __init__(self, send: Send) -> None:
        self.wrote = False
        self._send = send

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        head = [*headers, (b"content-length", b"%d" % len(body))]
        await self._send({"type": "http.response.start", "status": status, "headers": head})
        await self._send({"type": "http.response.body", "body": body})

    async def start(self, headers: Headers) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": list(headers)})

    async def write(self, data: bytes) -> None:
        self.wrote = True
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data})

    def sink(self) -> None:
        return None

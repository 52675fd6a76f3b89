"""An engine's server whose bytes a test writes: real HTTP on a real socket, one script for each request."""

from __future__ import annotations

import asyncio
import json
import ssl as tls
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httptools

from gateway.backends import Address
from tests.patience import PATIENCE

Json = dict[str, Any]

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


class Exchange:
    """One request that came, and the way back to who asked."""

    def __init__(self, connection: _Connection, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        self.connection = connection
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def gone(self) -> asyncio.Future[None]:
        """Done once the other side has closed the connection."""
        return self.connection.gone

    async def gone_at_once(self) -> bool:
        """Whether the other side, of this event loop, closes without waiting for any time: in turns of the loop."""
        for _ in range(10_000):
            if self.gone.done():
                return True
            await asyncio.sleep(0)
        return False

    async def send(self, data: bytes) -> None:
        """Raw bytes; waits while the other side doesn't read."""
        if not self.gone.done():
            self.connection.transport.write(data)
        await self.connection.writable.wait()

    async def whole(self, body: Json | bytes, status: int = 200, head: bytes = b"") -> None:
        await self.send(response(body, status, head))

    async def start(self) -> None:
        """The head of a streamed answer."""
        await self.send(STREAM_HEAD)

    async def event(self, *payloads: Json | bytes) -> None:
        """Server-sent events, all in one write."""
        events = [b"data: %b\n\n" % (p if isinstance(p, bytes) else json.dumps(p).encode()) for p in payloads]
        await self.send(chunked(b"".join(events)))

    async def end(self, *, done: bool = True) -> None:
        await self.send((chunked(DONE) if done else b"") + b"0\r\n\r\n")

    def close(self) -> None:
        self.connection.transport.close()

    def reset(self) -> None:
        """Ends the connection at once, whatever was not sent yet."""
        self.connection.transport.abort()


Script = Callable[[Exchange], Awaitable[None]]


class Double:
    """The n-th request meets the n-th script, every further one the last.

    scripts: may be replaced. requests: every Exchange so far. connections: how many were ever opened. open: those that
    are now.
    """

    def __init__(self, *scripts: Script) -> None:
        self.requests: list[Exchange] = []
        self.connections = 0
        self.open: set[_Connection] = set()
        self.scripts = scripts
        self._changed = asyncio.Condition()
        self.address = Address()

    @asynccontextmanager
    async def serve(self, *, uds: Path | None = None, ssl: tls.SSLContext | None = None) -> AsyncIterator[Double]:
        loop = asyncio.get_running_loop()
        if uds is not None:
            server = await loop.create_unix_server(lambda: _Connection(self), str(uds))
            self.address = Address(uds=str(uds))
        else:
            server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0, ssl=ssl)
            port = server.sockets[0].getsockname()[1]
            self.address = Address(host="localhost" if ssl else "127.0.0.1", port=port, tls=ssl is not None)
        try:
            yield self
        finally:
            server.close()
            for connection in [*self.open]:
                connection.end()

    async def asked(self, count: int = 1) -> Exchange:
        """The last request, once `count` have come."""
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: len(self.requests) >= count)
        return self.requests[-1]

    async def count_open(self, count: int) -> None:
        """Waits until so many connections stand."""
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: len(self.open) == count)

    async def run(self, exchange: Exchange) -> None:
        script = self.scripts[min(len(self.requests), len(self.scripts) - 1)]
        self.requests.append(exchange)
        await self.changed()
        await script(exchange)

    async def changed(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class _Connection(asyncio.Protocol):
    """Requests one after another: the next is read when the script of the last has returned."""

    def __init__(self, double: Double) -> None:
        self.transport: asyncio.Transport
        self.writable = asyncio.Event()
        self.writable.set()
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.double = double
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: list[Exchange] = []
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.double.connections += 1
        self.double.open.add(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.double.open.discard(self)
        if not self.gone.done():
            self.gone.set_result(None)
        self.writable.set()
        self._told = asyncio.get_running_loop().create_task(self.double.changed())

    def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self.transport.abort()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    # httptools
    def on_message_begin(self) -> None:
        self._url, self._body = b"", bytearray()
        self._headers: dict[str, str] = {}

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode().lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode()
        self._waiting.append(Exchange(self, method, self._url.decode(), self._headers, bytes(self._body)))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._waiting:
            await self.double.run(self._waiting.pop(0))


def response(body: Json | bytes, status: int = 200, head: bytes = b"") -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % (status, len(content))
    return kind + head + b"\r\n" + content


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def completion(content: str | None = "Hello", *, reason: str = "stop", **message: Any) -> Json:
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}, "finish_reason": reason}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }


def chunk(content: str | None = None, *, reason: str | None = None, index: int = 0, **delta: Any) -> Json:
    said = {} if content is None else {"content": content}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 7,
        "model": "m",
        "choices": [{"index": index, "delta": {**said, **delta}, "finish_reason": reason}],
    }


def answers(body: Json | bytes | None = None, status: int = 200, head: bytes = b"") -> Script:
    """A script: one whole answer."""

    async def script(exchange: Exchange) -> None:
        await exchange.whole(completion() if body is None else body, status, head)

    return script


def streams(*payloads: Json | bytes, done: bool = True) -> Script:
    """A script: one stream, each payload a write of its own."""

    async def script(exchange: Exchange) -> None:
        await exchange.start()
        for payload in payloads:
            await exchange.event(payload)
        await exchange.end(done=done)

    return script


def says(*raw: bytes, close: bool = False) -> Script:
    """A script: raw bytes, each piece a write of its own."""

    async def script(exchange: Exchange) -> None:
        for piece in raw:
            await exchange.send(piece)
            await asyncio.sleep(0)
        if close:
            exchange.close()

    return script


async def silence(exchange: Exchange) -> None:
    """A script: never answers; returns when the other side has gone."""
    await exchange.gone


async def endless(exchange: Exchange) -> None:
    """A script: one delta, then nothing more until the other side has gone."""
    await exchange.start()
    await exchange.event(chunk("Hello"))
    await exchange.gone

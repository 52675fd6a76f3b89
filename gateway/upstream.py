"""The HTTP/1.1 client of the hot path.

httptools parses; this module manages connections: a last-in-first-out pool for each engine. It stops reading from a
socket while the reader lags, and cancels a request by aborting its connection. Code off the hot path uses httpx.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol, cast

import httptools

from gateway.errors import ProviderInvalidResponse, ProviderUnavailable

HIGH_WATER = 64 * 1024
"""Buffered bytes of an answer at which reading from the engine's socket pauses, until the reader catches up."""

MAX_HEAD = 64 * 1024
MAX_BODY = 256 * 1024 * 1024
MAX_IDLE = 64
SWEEP_SECONDS = 1.0
LINGER_SECONDS = 1.0


class EngineGone(ProviderUnavailable):
    """The engine closed the connection before the end of its answer."""


class NotConnected(EngineGone):
    """The connection could not be opened, so nothing was sent."""


class Target(Protocol):
    """Where an engine listens; `gateway.backends.base.Address` implements it."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def uds(self) -> str | None: ...
    @property
    def tls(self) -> bool: ...


class Response:
    """One HTTP response. `Upstream.request` returns it with `status` and `headers` (lower-case names); the body
    follows."""

    __slots__ = ("_connection", "_error", "_parts", "_waiter", "buffered", "ended", "headers", "offer", "status")

    def __init__(self, connection: _Connection) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.ended = False
        self.offer: Callable[[bytes], bool] | None = None
        """Called with each piece that arrives while `receive` waits. If it returns True, `receive` keeps waiting.

        Saves a piece the way through the event loop. `receive` raises what it raises.
        """
        self._connection: _Connection | None = connection
        self._parts: list[bytes] = []
        self.buffered = 0
        """Bytes that have come and aren't received yet."""
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        """Completes on the head, more body, the end or an error."""

    async def receive(self) -> bytes:
        """Returns the bytes that arrived since the last call, at least one; b"" after the end of the body.

        Raises ProviderUnavailable if the engine closes the connection or goes silent, ProviderInvalidResponse if it
        violates HTTP. Returns the bytes that arrived before the failure first.
        """
        while not self._parts:
            if self._error is not None:
                raise self._error
            if self.ended:
                return b""
            self._waiter = waiter = asyncio.get_running_loop().create_future()
            await waiter
        data = b"".join(self._parts)
        self._parts.clear()
        self.buffered = 0
        if self._connection is not None:
            self._connection.resume()
        return data

    async def read(self, limit: int = MAX_BODY) -> bytes:
        """Returns the whole body. Raises as `receive` does, and ProviderInvalidResponse above `limit` bytes."""
        chunks: list[bytes] = []
        size = 0
        while not self.ended and size <= limit:
            chunks.append(await self.receive())
            size += len(chunks[-1])
        if size + self.buffered > limit:
            self.close()
            raise ProviderInvalidResponse(f"the engine's answer exceeds {limit} bytes")
        body = b"".join((*chunks, *self._parts)) if chunks else b"".join(self._parts)
        self._parts.clear()
        self.buffered = 0
        return body

    async def _head(self, loop: asyncio.AbstractEventLoop) -> None:
        """Returns once the head has come, or an error."""
        while not self.status and self._error is None:
            self._waiter = waiter = loop.create_future()
            await waiter

    @property
    def until_close(self) -> bool:
        """Whether the body ends only when the connection closes, as with HTTP/1.0 servers."""
        chunked = b"chunked" in self.headers.get(b"transfer-encoding", b"").lower()
        return self.status != 0 and not chunked and b"content-length" not in self.headers

    def close(self) -> None:
        """Ends the exchange. An unfinished one is aborted at once, which cancels the engine's work."""
        connection, self._connection = self._connection, None
        if connection is not None and not self.ended:
            connection.abort()

    def cut(self, error: Exception) -> None:
        """Ends the exchange as `close` does; `receive` returns what has come, then raises `error`."""
        self.close()
        self._fail(error)

    def finish(self) -> None:
        """Drops the rest of the body, usually the end of the last chunk, so that the connection can be reused.

        Aborts the connection if the rest takes more than a second.
        """
        connection, self._connection = self._connection, None
        if connection is not None and not self.ended:
            asyncio.get_running_loop().call_later(LINGER_SECONDS, connection.abort_if_serving, self)

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self.ended and self._error is None:
            self._error = error
            self._wake()


class _Connection(asyncio.Protocol):
    __slots__ = (
        *("_head_bytes", "_loop", "_parser", "_paused", "_received", "_writable"),
        *("closed", "heard", "response", "single", "transport", "upstream"),
    )

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport
        self.response: Response | None = None
        self.closed = False
        self.heard = 0.0
        self.single = False
        """It is for one request: the engine may answer before it has read all of it."""
        self._paused = False
        self._received = False
        self._writable: asyncio.Future[None] | None = None
        """What a sender waits for while the engine doesn't read; None while it does."""
        self._head_bytes = 0
        """Bytes of the answer's head, or of its trailers: bytes that came without a piece of the body."""
        self._parser = httptools.HttpResponseParser(self)

    def send(self, data: bytes, rest: bytes) -> Response:
        self._received = False
        self._head_bytes = 0
        self.response = response = Response(self)
        self.heard = self._loop.time()
        self.transport.write(data)
        if rest:
            self.transport.write(rest)
        return response

    async def write(self, piece: bytes) -> None:
        """Sends a further piece of a request's body; waits while the engine doesn't read."""
        self.heard = self._loop.time()
        self.transport.write(piece)
        if self._writable is not None:
            await self._writable

    @property
    def unanswered(self) -> bool:
        """Whether the engine has sent no byte for the current request."""
        return not self._received

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self.heard = self._loop.time()
            self.transport.resume_reading()

    def abort(self) -> None:
        self.response = None
        self.upstream._forget(self, broken=not self.single)
        self.transport.abort()

    def abort_if_serving(self, response: Response) -> None:
        if self.response is response:
            self.abort()

    def silent_since(self, limit: float) -> bool:
        """Whether nothing arrived since `limit`, although reading was not paused."""
        return not self._paused and self.heard < limit

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport doesn't derive from it
        self.upstream._open.add(self)

    def data_received(self, data: bytes) -> None:
        response = self.response
        if response is None:
            # Bytes without a request: the connection is out of sync.
            self.abort()
            return
        self._received = True
        self.heard = self._loop.time()
        body_before = response.buffered
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._violated(response, "unexpected protocol upgrade")
            return
        except httptools.HttpParserError as error:
            self._violated(response, str(error))
            return
        if response.buffered == body_before and not response.ended:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD:
                part = "trailers exceed" if response.status else "response head exceeds"
                self._violated(response, f"the {part} {MAX_HEAD} bytes")
            return
        self._head_bytes = 0
        parts = response._parts
        if parts:
            offer = response.offer
            # Leave several parts to the reader, which sends them in one write.
            if offer is not None and response._waiter is not None and len(parts) == 1:
                try:
                    if offer(parts[0]):
                        parts.clear()
                        response.buffered = 0
                        return
                except Exception as error:  # noqa: BLE001  the reader handles it
                    parts.clear()
                    response.offer = None
                    response._fail(error)
                    return
            if response.buffered > HIGH_WATER and not self._paused and not response.ended:
                self._paused = True
                self.transport.pause_reading()
            if response._waiter is not None:
                response._wake()

    def _violated(self, response: Response, violation: str) -> None:
        self.abort()
        response._fail(ProviderInvalidResponse(f"{self.upstream.target} violated HTTP: {violation}"))

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.resume_writing()
        self.upstream._forget(self)
        response, self.response = self.response, None
        if response is None or response.ended:
            return
        if exc is None and response.until_close:
            response.ended = True
            response._wake()
            return
        when = "in the middle of its answer" if self._received else "before it answered"
        response._fail(EngineGone(f"the engine at {self.upstream.target} went away {when}", status=502))

    # httptools callbacks
    def on_header(self, name: bytes, value: bytes) -> None:
        response = self.response
        assert response is not None
        if not response.status:  # trailers are dropped
            response.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        response = self.response
        assert response is not None
        status = self._parser.get_status_code()
        if status < 200:
            # The headers of an interim response don't apply to the final one.
            response.headers.clear()
            return
        self._head_bytes = 0
        response.status = status
        response._wake()

    def on_body(self, body: bytes) -> None:
        response = self.response
        if response is None:
            return
        response._parts.append(body)
        response.buffered += len(body)

    def on_message_complete(self) -> None:
        response = self.response
        if response is None or not response.status:
            return
        self.response = None
        response.ended = True
        response._connection = None
        if self._paused:
            self._paused = False
            self.transport.resume_reading()
        upstream = self.upstream
        if self.single:
            self.abort()
        elif not self._parser.should_keep_alive() or upstream._closed or len(upstream._idle) >= MAX_IDLE:
            upstream._forget(self, broken=False)
            self.transport.close()
        else:
            upstream._idle.append(self)
        if response._waiter is not None:
            response._wake()


trace: ContextVar[bytes] = ContextVar("trace", default=b"")
"""Extra header lines, each after a line break, for requests that are sent on behalf of a traced request."""


class Upstream:
    """The connections to one engine.

    connect_timeout: seconds to open a connection. silence_timeout: an answer fails after this many seconds without a
    byte from the engine. ca_file: trusted certificate authorities for https, in PEM format; None uses the system's.
    Raises ProviderUnavailable if it can't read ca_file.
    """

    def __init__(
        self,
        target: Target,
        *,
        connect_timeout: float = 5.0,
        silence_timeout: float = 600.0,
        ca_file: Path | None = None,
    ) -> None:
        self.target = target
        self._connect_timeout = connect_timeout
        self._silence_timeout = silence_timeout
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._tls = _tls(ca_file) if target.tls else None
        name = "localhost" if target.uds is not None else bracketed(target.host)
        self._host = name if target.port in (0, 443 if target.tls else 80) else f"{name}:{target.port}"
        self._closed = False
        self.partings = 0
        """Changes whenever the last connection breaks, in an answer or idle: another server may have taken the address
        by the next one."""

    def head(self, method: str, path: str, headers: list[tuple[str, str]]) -> bytes:
        """Builds the constant part of a request's head. Raises ValueError if a value contains a line break."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}", *(f"{name}: {value}" for name, value in headers)]
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("a request line or header contains a line break")
        return "\r\n".join(lines).encode("latin-1")

    async def request(self, head: bytes, body: bytes = b"") -> Response:
        """Sends a request and returns once the response's head has come.

        If the engine closes a pooled connection before it sent a byte, sends the request again on another. An engine
        that only took too long isn't asked twice. Raises ProviderUnavailable, ProviderInvalidResponse.
        """
        if more := trace.get():
            head += more
        head = b"%b\r\nContent-Length: %d\r\n\r\n" % (head, len(body))
        # One write for both, but no copy of a large body.
        data, rest = (head + body, b"") if len(body) <= HIGH_WATER else (head, body)
        while True:
            connection, fresh = (self._idle.pop(), False) if self._idle else (await self._connect(), True)
            self._watch()
            response = connection.send(data, rest)
            try:
                await response._head(connection._loop)
            except BaseException:
                response.close()
                raise
            if response.status:
                return response
            assert response._error is not None
            if fresh or not connection.unanswered or not isinstance(response._error, EngineGone):
                raise response._error

    async def upload(self, head: bytes, size: int, pieces: AsyncIterator[bytes]) -> Response:
        """Like `request`, for a body of `size` bytes that comes in pieces, as fast as the engine reads.

        Has a connection of its own, and sends nothing twice. An engine may answer before it has the whole body; the
        rest isn't sent then. Raises what `pieces` raises, too.
        """
        connection = await self._connect()
        connection.single = True
        self._watch()
        line = b"%b\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        response = connection.send(line % (head + trace.get(), size), b"")
        try:
            async for piece in pieces:
                if response.status or response._error is not None:
                    break
                await connection.write(piece)
            await response._head(connection._loop)
            if response._error is not None and not response.status:
                raise response._error
        except BaseException:
            response.close()
            raise
        return response

    def _watch(self) -> None:
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)

    @property
    def busy(self) -> list[_Connection]:
        """The connections with an answer in flight."""
        return [connection for connection in self._open if connection.response is not None]

    def heard(self) -> float | None:
        """When the last byte of any answer in flight arrived, by the loop's clock; None if none is being read."""
        return max((connection.heard for connection in self.busy if not connection._paused), default=None)

    async def aclose(self) -> None:
        """Closes every connection; answers in flight fail."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in self._open:
            connection.transport.abort()  # asyncio calls connection_lost later
        self._idle.clear()

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        target = self.target
        if self._closed:
            raise ProviderUnavailable(f"the connection to {target} is closed")
        try:
            async with asyncio.timeout(self._connect_timeout):
                if target.uds is not None:
                    _, connection = await loop.create_unix_connection(lambda: _Connection(self), target.uds)
                else:
                    _, connection = await loop.create_connection(
                        lambda: _Connection(self), target.host, target.port, ssl=self._tls
                    )
        except TimeoutError:
            raise NotConnected(f"{target} accepted no connection within {self._connect_timeout:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise NotConnected(
                f"{target} has an untrusted certificate ({error.verify_message}); set ca_file to the authority that"
                " issued it"
            ) from error
        except OSError as error:
            raise NotConnected(f"nothing answers at {target}: {error.strerror or error}") from error
        if self._closed:
            connection.transport.abort()
            raise ProviderUnavailable(f"the connection to {target} is closed")
        if connection.closed:
            raise NotConnected(f"{target} accepted a connection and closed it at once")
        if reached_itself(connection.transport):
            raise NotConnected(f"nothing answers at {target}: the connection reached itself")
        return connection

    def _forget(self, connection: _Connection, *, broken: bool = True) -> None:
        """broken: not closed because an answer is complete."""
        if connection in self._open:
            self._open.remove(connection)
            self.partings += broken and not self._open
        if connection in self._idle:
            self._idle.remove(connection)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        limit = loop.time() - self._silence_timeout
        for connection in [c for c in self.busy if c.silent_since(limit)]:
            response = connection.response
            connection.abort()
            if response is not None:
                response._fail(
                    ProviderUnavailable(f"the engine at {self.target} sent nothing for {self._silence_timeout:g} s")
                )
        self._sweeper = loop.call_later(SWEEP_SECONDS, self._sweep) if self.busy else None


def reached_itself(transport: asyncio.BaseTransport) -> bool:
    """Whether a new TCP connection has no server at its other end, but itself; resets it then.

    If nothing listens on a port in the ephemeral range, the system may choose that very port for the connection, which
    then succeeds and echoes each request back.
    """
    own, opened = transport.get_extra_info("sockname"), transport.get_extra_info("socket")
    # On a Unix socket, the client's address is empty.
    if not own or own != transport.get_extra_info("peername"):
        return False
    # An orderly close would keep servers off the port for a minute.
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    cast(asyncio.Transport, transport).abort()
    return True


def bracketed(host: str) -> str:
    """A host as in URLs and the Host header: an IPv6 address gets brackets (RFC 3986 §3.2.2)."""
    return f"[{host}]" if ":" in host else host


def _tls(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ProviderUnavailable(f"ca_file {ca_file} can't be read: {error.strerror or error}") from error

"""The HTTP/1.1 client of the hot path.

httptools parses, we keep the connections: a last-in-first-out pool for each engine, reading paused while
the reader lags, cancel = abort. Everything off the hot path uses httpx.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

import httptools

from gateway.errors import ProviderInvalidResponse, ProviderUnavailable

HIGH_WATER = 64 * 1024
"""Bytes of an answer held for a reader that lags before the engine's socket is no longer read."""

MAX_HEAD = 64 * 1024
MAX_BODY = 256 * 1024 * 1024
MAX_IDLE = 64
SWEEP_SECONDS = 1.0
LINGER_SECONDS = 1.0


class EngineGone(ProviderUnavailable):
    """The connection ended before the answer did."""


class NotConnected(EngineGone):
    """No connection came about, so nothing was sent."""


class Target(Protocol):
    """What `gateway.backends.base.Address` offers to this module."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def uds(self) -> str | None: ...
    @property
    def tls(self) -> bool: ...


class Response:
    """One answer. `status` and `headers` (lower-case names) stand from the start, the body comes as it arrives."""

    __slots__ = ("_connection", "_error", "_parts", "_size", "_waiter", "ended", "headers", "offer", "status")

    def __init__(self, connection: _Connection) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.ended = False
        self.offer: Callable[[bytes], bool] | None = None
        """Offered each piece that comes while `receive` waits: True takes it, and `receive` waits on.

        It saves a piece the way through the event loop. What it raises, `receive` raises.
        """
        self._connection: _Connection | None = connection
        self._parts: list[bytes] = []
        self._size = 0
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def receive(self) -> bytes:
        """The bytes that arrived since the last call, at least one; b"" once the body has ended.

        Raises ProviderUnavailable if the engine went away before the end, ProviderInvalidResponse if it
        broke HTTP. Bytes that arrived before the failure are handed out first.
        """
        while not self._parts:
            if self._error is not None:
                raise self._error
            if self.ended:
                return b""
            await self.news()
        data = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        if self._connection is not None:
            self._connection.resume()
        return data

    async def read(self, limit: int = MAX_BODY) -> bytes:
        """The whole body. Raises as `receive`, and ProviderInvalidResponse for a body above `limit` bytes."""
        early: list[bytes] = []
        size = 0
        while not self.ended and size <= limit:
            early.append(await self.receive())
            size += len(early[-1])
        if size + self._size > limit:
            self.close()
            raise ProviderInvalidResponse(f"the engine's answer exceeds {limit} bytes")
        body = b"".join((*early, *self._parts)) if early else b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        return body

    @property
    def until_close(self) -> bool:
        """The head has come, and told nothing of the body's end but the connection's (HTTP/1.0 servers)."""
        chunked = b"chunked" in self.headers.get(b"transfer-encoding", b"").lower()
        return self.status != 0 and not chunked and b"content-length" not in self.headers

    def close(self) -> None:
        """Ends the exchange. An unfinished one is aborted at once, which cancels the engine's work."""
        connection, self._connection = self._connection, None
        if connection is not None and not self.ended:
            connection.abort()

    def finish(self) -> None:
        """The reader has all it needs: what is left (the end of the last chunk) is read and dropped, within a second,
        so that the connection can be used again."""
        connection, self._connection = self._connection, None
        if connection is not None and not self.ended:
            asyncio.get_running_loop().call_later(LINGER_SECONDS, connection.abort_if_on, self)

    def news(self) -> asyncio.Future[None]:
        """Done once the head, more of the body, its end or an error has come. One may wait at a time."""
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        return waiter

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
        "_early",
        "_loop",
        "_parser",
        "_paused",
        "_touched",
        "closed",
        "heard",
        "response",
        "transport",
        "upstream",
    )

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport
        self.response: Response | None = None
        self.closed = False
        self.heard = 0.0
        self._paused = False
        self._touched = False
        self._early = 0
        """Bytes that came of an answer without its head being whole."""
        self._parser = httptools.HttpResponseParser(self)

    def send(self, data: bytes) -> Response:
        self._touched = False
        self._early = 0
        self.response = response = Response(self)
        self.heard = self._loop.time()
        self.transport.write(data)
        return response

    @property
    def untouched(self) -> bool:
        """Whether the engine has sent nothing at all for the current request."""
        return not self._touched

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self.heard = self._loop.time()
            self.transport.resume_reading()

    def abort(self) -> None:
        self.response = None
        self.upstream._forget(self)
        self.transport.abort()

    def abort_if_on(self, response: Response) -> None:
        if self.response is response:
            self.abort()

    def silent_since(self, limit: float) -> bool:
        """Nothing came since `limit`, though we were listening."""
        return not self._paused and self.heard < limit

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods alone
        self.upstream._open.add(self)

    def data_received(self, data: bytes) -> None:
        response = self.response
        if response is None:
            # Bytes that answer nothing: the connection can't be trusted any more.
            self.abort()
            return
        self._touched = True
        self.heard = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._broke(response, "it changes the protocol")
            return
        except httptools.HttpParserError as error:
            self._broke(response, str(error))
            return
        if not response.status:
            self._early += len(data)
            if self._early > MAX_HEAD:
                self._broke(response, f"the head of its answer exceeds {MAX_HEAD} bytes")
            return
        parts = response._parts
        if parts:
            offer = response.offer
            # What came in several parts goes to the reader, who sends it on in one.
            if offer is not None and response._waiter is not None and len(parts) == 1:
                try:
                    if offer(parts[0]):
                        parts.clear()
                        response._size = 0
                        return
                except Exception as error:  # noqa: BLE001  it is the reader's to handle
                    parts.clear()
                    response.offer = None
                    response._fail(error)
                    return
            if response._size > HIGH_WATER and not self._paused and not response.ended:
                self._paused = True
                self.transport.pause_reading()
            if response._waiter is not None:
                response._wake()

    def _broke(self, response: Response, how: str) -> None:
        self.abort()
        response._fail(ProviderInvalidResponse(f"{self.upstream.target} broke HTTP: {how}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.upstream._forget(self)
        response, self.response = self.response, None
        if response is None or response.ended:
            return
        if exc is None and response.until_close:
            response.ended = True
            response._wake()
            return
        what = "in the middle of its answer" if self._touched else "before it answered"
        response._fail(EngineGone(f"the engine at {self.upstream.target} went away {what}", status=502))

    # httptools callbacks
    def on_header(self, name: bytes, value: bytes) -> None:
        assert self.response is not None
        self.response.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        assert self.response is not None
        status = self._parser.get_status_code()
        if status < 200:
            # An interim answer's headers say nothing of the one to come.
            self.response.headers.clear()
            return
        self.response.status = status
        self.response._wake()

    def on_body(self, body: bytes) -> None:
        response = self.response
        if response is None:
            return
        response._parts.append(body)
        response._size += len(body)

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
        if self._parser.should_keep_alive():
            self.upstream._release(self)
        else:
            self.upstream._forget(self)
            self.transport.close()
        if response._waiter is not None:
            response._wake()


class Upstream:
    """The connections to one engine.

    connect_timeout: seconds for a connection to stand. silence_timeout: seconds without a byte from an
    engine that was asked, after which its answer fails. ca_file: the authorities that vouch for an https server, as
    PEM; None: the system's. Raises ProviderUnavailable where it can't be read.
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

    def head(self, method: str, path: str, headers: list[tuple[str, str]]) -> bytes:
        """The constant part of a request's head, for `request`; values may not hold line breaks."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}", *(f"{name}: {value}" for name, value in headers)]
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("a request line or header holds a line break")
        return "\r\n".join(lines).encode("latin-1")

    async def request(self, head: bytes, body: bytes = b"") -> Response:
        """Sends a request and returns once the response's head has come.

        A request on a kept connection that the engine had closed meanwhile is sent again on a fresh one,
        only if not a single byte was sent back. Raises ProviderUnavailable, ProviderInvalidResponse.
        """
        data = b"%b\r\nContent-Length: %d\r\n\r\n%b" % (head, len(body), body)
        while True:
            connection, fresh = (self._idle.pop(), False) if self._idle else (await self._connect(), True)
            if self._sweeper is None:
                self._sweeper = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)
            response = connection.send(data)
            try:
                while not response.status and response._error is None:
                    await response.news()
            except BaseException:
                response.close()
                raise
            if response.status:
                return response
            if fresh or not connection.untouched or not connection.closed:
                assert response._error is not None
                raise response._error

    def heard(self) -> float | None:
        """When the last byte of any answer in flight came, by the loop's clock; None where none is listened to."""
        return max((connection.heard for connection in self._busy if not connection._paused), default=None)

    async def aclose(self) -> None:
        """Closes every connection; answers in flight fail."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in self._open:
            connection.transport.abort()  # which it is told later
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
            raise NotConnected(f"{target} took no connection within {self._connect_timeout:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise NotConnected(
                f"{target} shows a certificate that can't be trusted ({error.verify_message}); ca_file names the"
                " authority that vouches for it"
            ) from error
        except OSError as error:
            raise NotConnected(f"nothing answers at {target}: {error.strerror or error}") from error
        if self._closed:
            connection.transport.abort()
            raise ProviderUnavailable(f"the connection to {target} is closed")
        if connection.closed:
            raise NotConnected(f"{target} took a connection and closed it at once")
        return connection

    @property
    def _busy(self) -> list[_Connection]:
        """Those that an answer is awaited on."""
        return [connection for connection in self._open if connection.response is not None]

    def _release(self, connection: _Connection) -> None:
        if self._closed or len(self._idle) >= MAX_IDLE:
            self._open.discard(connection)
            connection.transport.close()
        else:
            self._idle.append(connection)

    def _forget(self, connection: _Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        limit = loop.time() - self._silence_timeout
        for connection in [c for c in self._busy if c.silent_since(limit)]:
            response = connection.response
            connection.abort()
            if response is not None:
                response._fail(
                    ProviderUnavailable(f"the engine at {self.target} sent nothing for {self._silence_timeout:g} s")
                )
        self._sweeper = loop.call_later(SWEEP_SECONDS, self._sweep) if self._busy else None


def bracketed(host: str) -> str:
    """A host as URLs and the Host header have it: an IPv6 address in brackets (RFC 3986 §3.2.2)."""
    return f"[{host}]" if ":" in host else host


def _tls(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ProviderUnavailable(f"ca_file {ca_file} can't be read: {error.strerror or error}") from error

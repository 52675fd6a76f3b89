"""The hot route on uvicorn's httptools protocol class, without an ASGI scope, events or messages in between.

uvicorn still does the rest: connections, keep-alive, pipelining, flow control, shutdown. A request for another path, or
with a query, goes its usual ASGI way. Of uvicorn's internals this uses `HttpToolsProtocol`'s callbacks, its `cycle` and
what it reads of it; pyproject.toml pins the range.
"""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, Protocol

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.errors import GatewayError
from gateway.server.asgi import Headers, body_deadline, check_head, too_large
from gateway.server.client import Client, respond_error

log = logging.getLogger("ctxgate")

_OFFERED: Any = SimpleNamespace(response_complete=True)
"""Stands for a request whose head is read anew: uvicorn drops what belongs to it."""

MAX_HEAD = 64 * 1024
"""Bytes of a request's head, beyond which no more of it is read."""
HEAD_SECONDS = 60.0
"""For a request's head to be whole, and for a new connection to begin one."""
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
CLOSE = b"connection: close\r\n"


class HotApp(Protocol):
    """An ASGI application with one hot route, which this protocol calls directly."""

    hot_paths: frozenset[bytes]
    """POSTs to these paths take the hot route."""

    max_body: int
    """The largest body in bytes."""

    def authenticate(self, headers: Headers) -> object:
        """Raises ProviderAuthentication for a caller who may not use the route."""
        ...

    async def answer_hot(self, body: bytes, headers: Headers, client: Client) -> None:
        """Answers the request, errors included. Cancelled when the client leaves."""
        ...


class FastProtocol(HttpToolsProtocol):
    """Give it to uvicorn as `http=`; `app` must be a `HotApp`."""

    _idle_since: float | None = None
    """Since when nothing is asked, by the loop's clock; None while something is."""
    _lost = False
    worker: asyncio.Task[None] | None = None
    """Answers the connection's chats, one after another: a task for each costs more."""
    _due: ChatCycle | None = None
    """The chat that it shall answer next."""
    _wanted: asyncio.Future[None] | None = None
    """What it waits for while none is due."""
    _in_head = True
    """A request's head is awaited or half read."""
    _head_size = 0
    """Bytes of the half that came, but for the first read, which may hold the end of a body, too."""
    _looked_at: list[tuple[bytes, bytes]] | None = None
    """The headers that were half read at the last look."""
    _looking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.headers = []
        self._look()

    def _look(self) -> None:
        """Ends a connection whose head has been half read since the last look."""
        self._looking = None
        answering = self.cycle is not None and not self.cycle.response_complete
        if self._in_head and self._looked_at is self.headers and not answering:
            self.transport.close()
            return
        self._looked_at = self.headers if self._in_head else None
        self._looking = self.loop.call_later(HEAD_SECONDS, self._look)

    def data_received(self, data: bytes) -> None:
        self._idle_since = None
        headers = self.headers
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                if self.cycle is not _OFFERED:
                    self.send_400_response("No tunnels here.")
                    return
                data = self._without_upgrade() + data[offer.args[0] :]
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
                return
            else:
                break
        if self._in_head:
            self._head_size = self._head_size + len(data) if self.headers is headers else 0
            if self._head_size > MAX_HEAD:
                self.send_400_response(f"The head of a request may have {MAX_HEAD} bytes.")

    def _without_upgrade(self) -> bytes:
        """The head of a request that offers another protocol, as if it hadn't.

        httptools takes all behind such a head, the body too, for that protocol; Java's HTTP client sends one first.
        """
        self.cycle = self._before
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            if name == b"connection":
                lines += [b"connection: close"] if b"close" in value.lower() else []
            elif name not in (b"upgrade", b"http2-settings"):
                lines.append(b"%b: %b" % (name, value))
        self.parser = httptools.HttpRequestParser(self)
        return b"\r\n".join((*lines, b"", b""))

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._before, self.cycle = self.cycle, _OFFERED
            return
        if self.url not in self.app.hot_paths or self.parser.get_method() != b"POST":
            self._tell_uvicorn()
            return
        before = self.cycle
        self.cycle = cycle = ChatCycle(self)  # type: ignore[assignment]
        if before is None or before.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))  # type: ignore[arg-type]

    def _tell_uvicorn(self) -> None:
        """The head that has come, for the scope that a chat doesn't need."""
        url, headers = self.url, self.headers
        super().on_message_begin()
        super().on_url(url)
        for name, value in headers:
            super().on_header(name, value)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        cycle: Any = self.cycle
        if not cycle.response_complete:
            cycle.body += body
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            if type(cycle) is not ChatCycle or cycle.arrived is not None:
                cycle.message_event.set()

    def on_message_complete(self) -> None:
        cycle: Any = self.cycle
        if not cycle.response_complete:
            cycle.more_body = False
            if type(cycle) is not ChatCycle or cycle.arrived is not None:
                cycle.message_event.set()

    def on_response_complete(self) -> None:
        """As uvicorn's, whose timer for each answer cost more than this one, which goes on while there are answers."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._close_in(self.timeout_keep_alive)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if not isinstance(cycle, ChatCycle):
            super()._start_asgi_task(cycle, app)
            return
        self._due = cycle
        if self.worker is None or self.worker.done():
            self.worker = self.loop.create_task(self._work(app))
            self.tasks.add(self.worker)
            self.worker.add_done_callback(self.tasks.discard)
        else:
            self._wake()

    async def _work(self, app: HotApp) -> None:
        while not self._lost:
            cycle, self._due = self._due, None
            if cycle is not None:
                await cycle.run_asgi(app)
            else:
                self._wanted = self.loop.create_future()
                await self._wanted

    def _wake(self) -> None:
        wanted, self._wanted = self._wanted, None
        if wanted is not None and not wanted.done():
            wanted.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._looking is not None:
            self._looking.cancel()
        self._lost = True
        self._wake()

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self._idle_since is None:
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._close_in(left)
        else:
            super().timeout_keep_alive_handler()

    def _close_in(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)


class _Heads:
    """Heads of answers, which are alike within a second: uvicorn's own headers, a new list then, tell the date."""

    def __init__(self) -> None:
        self._own: list[tuple[bytes, bytes]] | None = None
        self._known: dict[tuple[int, Headers, bool], bytes] = {}

    def head(self, status: int, headers: Headers, keep_alive: bool, own: list[tuple[bytes, bytes]]) -> bytes:
        """Without the empty line at the end. own: the headers that uvicorn adds."""
        if own is not self._own:
            self._own = own
            self._known.clear()
        key = status, headers, keep_alive
        found = self._known.get(key)
        if found is None:
            lines = [b"%b: %b\r\n" % pair for pair in (*own, *headers)]
            found = self._known[key] = b"".join((STATUS_LINE[status], *lines, b"" if keep_alive else CLOSE))
        return found


_head = _Heads().head


class ChatCycle:
    """One request and its answer: what uvicorn reads of a cycle, and a `Client` for `Chat`."""

    __slots__ = (
        "_chunked",
        "_headers",
        "_protocol",
        "_task",
        "arrived",
        "body",
        "disconnected",
        "keep_alive",
        "more_body",
        "response_complete",
        "wrote",
    )

    def __init__(self, protocol: FastProtocol) -> None:
        self.body: bytes | bytearray = b""
        self.more_body = True
        self.disconnected = False
        self.response_complete = False
        self.wrote = False
        self._chunked = protocol.parser.get_http_version() == "1.1"
        self.keep_alive = self._chunked and protocol.parser.should_keep_alive()
        self._headers: Headers = protocol.headers
        self._protocol = protocol
        self._task: asyncio.Task[Any] | None = None
        self.arrived: asyncio.Future[None] | None = None
        """What waits for the rest of the body."""

    @property
    def message_event(self) -> ChatCycle:
        return self

    def set(self) -> None:
        """uvicorn's signal that body, its end or a disconnect came."""
        if self.disconnected:
            if self._task is not None:
                self._task.cancel()
        elif self.arrived is not None and not self.arrived.done():
            self.arrived.set_result(None)

    async def run_asgi(self, app: HotApp) -> None:
        self._task = self._protocol.worker
        try:
            app.authenticate(self._headers)
            limit = app.max_body
            whole = not self.more_body and len(self.body) <= limit and not self._protocol.flow.read_paused
            body = bytes(self.body) if whole else await self._read(limit)
            await app.answer_hot(body, self._headers, self)
        except GatewayError as error:
            self.keep_alive = self.keep_alive and not self.more_body
            await respond_error(self, error)
        except asyncio.CancelledError:
            if not self.disconnected:
                self._protocol.transport.close()
                raise
        except Exception:
            log.exception("the fast protocol failed")
            self._protocol.transport.close()
        finally:
            self._task = None

    async def _read(self, limit: int) -> bytes:
        if self.more_body:
            check_head(self._headers, limit)
            if any(name == b"expect" and value.lower() == b"100-continue" for name, value in self._headers):
                self._protocol.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.body = bytearray(self.body)
            while self.more_body:
                if len(self.body) > limit:
                    raise too_large(limit)
                self._protocol.flow.resume_reading()
                self.arrived = asyncio.get_running_loop().create_future()
                async with body_deadline():
                    await self.arrived
        if len(self.body) > limit:
            raise too_large(limit)
        if self._protocol.flow.read_paused and not self._protocol.pipeline:
            # uvicorn paused for the body; who doesn't read won't see the client leave.
            self._protocol.flow.resume_reading()
        return bytes(self.body)

    # Client

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        head = _head(status, headers, self.keep_alive, self._protocol.server_state.default_headers)
        self._protocol.transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))
        self._complete()

    async def start(self, headers: Headers) -> None:
        self.keep_alive = self.keep_alive and self._chunked
        head = _head(200, headers, self.keep_alive, self._protocol.server_state.default_headers)
        self._protocol.transport.write(head + (CHUNKED if self._chunked else b"\r\n"))

    async def write(self, data: bytes) -> None:
        self.wrote = True
        self._protocol.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        if self._protocol.flow.write_paused:
            await self._protocol.flow.drain()

    async def end(self, data: bytes) -> None:
        self._protocol.transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if self._chunked else data)
        self._complete()

    def sink(self) -> ChatCycle:
        return self

    # Sink

    def ready(self) -> bool:
        return not self._protocol.flow.write_paused and not self.disconnected

    def push(self, data: bytes) -> None:
        self.wrote = True
        self._protocol.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def _complete(self) -> None:
        self.response_complete = True
        if not self.keep_alive:
            self._protocol.transport.close()
        self._protocol.on_response_complete()

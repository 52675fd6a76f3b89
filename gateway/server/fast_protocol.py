"""HTTP/1.1 on uvicorn's httptools protocol class; the hot route has no ASGI scope, events or messages in between.

uvicorn still does the rest: keep-alive, flow control, shutdown. A request for another path, or with a query, goes its
usual ASGI way. Of uvicorn's internals this uses `HttpToolsProtocol`'s callbacks, its `cycle` and what it reads of it;
pyproject.toml pins the range.

Everything that a client may send is limited before its key is checked: connections, the time and the size of a head,
whatever comes between and after the pieces of a body (trailers, chunk extensions), and pipelined requests.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable
from time import time
from types import SimpleNamespace
from typing import Any, NoReturn, Protocol

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.errors import GatewayError, ProviderInvalidRequest, ProviderUnavailable
from gateway.observe.shares import tenant
from gateway.server.access import Access
from gateway.server.asgi import ASGIApp, Headers, Message, Receive, Scope, Send
from gateway.server.bodies import Bodies, Body
from gateway.server.client import JSON_TYPE, Client, respond_error
from gateway.server.connections import has_left, make_room
from gateway.server.keys import Keyring
from gateway.server.principal import Callers, Principal
from gateway.wire.chat import Caller, Meter, encode
from gateway.wire.limits import LimitReached, openai_headers

log = logging.getLogger("ctxgate")

_OFFERED: Any = SimpleNamespace(response_complete=True)
"""Represents a request whose head is parsed again: uvicorn drops its state."""

MAX_HEAD = 64 * 1024
"""Bytes of a request besides its body: head, trailers, chunk extensions; and one PIECE more."""
FRAMING = 32
"""Bytes around each piece of a body that don't count."""
PIECE = 32 * 1024
"""Bytes to read at once: they may contain many requests."""
HEAD_SECONDS = 60.0
"""Time limit for a complete request head, and for a new connection to begin one."""
SLOW_SECONDS = 60.0
"""How long a client may read nothing although data is ready for it."""
DEPARTURE_SECONDS = 1.0
"""How soon the gateway notices that a client with pipelined requests has left."""
LINGER_SECONDS = 2.0
"""How long a refused client may take to read the reason."""
TURNED_AWAY = 64
"""How many connections above the maximum get an error; further ones are closed at once."""
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
CLOSE = b"connection: close\r\n"

MALFORMED = ProviderInvalidRequest("this is no valid HTTP request", code="malformed_http")
NO_TUNNELS = ProviderInvalidRequest("the gateway makes no tunnels", code="malformed_http")
TOO_LONG = ProviderInvalidRequest(
    f"a request may have {MAX_HEAD} bytes besides its body", code="request_head_too_large", status=431
)
FULL = ProviderUnavailable("too many connections (server.max_connections)", code="too_many_connections", retry_after=1)

_numbers = itertools.count()


class HotApp(Protocol):
    """An ASGI application with one hot route, which this protocol calls directly: `gateway.api.entry.API`, whose
    `answer_hot` is `gateway.api.chat.Chat.answer`."""

    hot_paths: frozenset[bytes]
    """POSTs to these paths take the hot route."""

    max_body: int
    """The largest body in bytes."""

    max_connections: int

    bodies: Bodies

    websockets: dict[bytes, str]
    """GETs of these paths may ask for a WebSocket; what serves each."""

    access: Access
    keyring: Keyring
    callers: Callers

    def authenticate(self, headers: Headers) -> Principal:
        """Raises ProviderAuthentication for a caller who may not use the route. Not asked while `keyring` lets anybody
        in."""
        ...

    async def caller(self, agent: bytes, principal: Principal) -> Caller:
        """One that `callers` may not know yet. Raises what `gateway.features.keys.limiter.Limiter.meter` raises."""
        ...

    async def answer_hot(self, body: bytes, headers: Headers, client: Client, caller: Caller) -> None:
        """Answers the request, errors included. Cancelled when the client leaves."""
        ...

    def refused(self, caller: Caller, error: GatewayError, body: bytes) -> None:
        """Logs a request that was refused before `answer_hot`. body: what has come of it; b"" if that is much."""


class _Flow(FlowControl):
    """Pauses reading while pipelined requests wait: otherwise each answer would let in more of them."""

    def __init__(self, protocol: FastProtocol) -> None:
        super().__init__(protocol.transport)
        self.protocol: FastProtocol | None = protocol

    def resume_reading(self) -> None:
        if self.protocol is not None and not self.protocol.pipeline and not self.protocol.held:
            super().resume_reading()


class _NoParser:
    """Replaces the parser of a connection that takes no further requests."""

    def feed_data(self, data: bytes) -> NoReturn:
        raise httptools.HttpParserError


_NO_PARSER: Any = _NoParser()


class FastProtocol(HttpToolsProtocol):
    """Give it to uvicorn as `http=`; `app` must be a `HotApp`."""

    __slots__ = (
        *("_active", "_allowance", "_deadline", "_due", "_evicted", "_fault", "_half", "_idle_since", "_leaving"),
        *("_lost", "_number", "_stalled", "_unfinished_head", "_wanted", "_why", "held", "modern", "worker"),
    )

    _idle_since: float | None
    """Since when the connection is idle, by the loop's clock; None while it isn't."""
    worker: asyncio.Task[None] | None
    """Answers the connection's chats, one after another: a task for each costs more."""
    _due: ChatCycle | None
    """The chat that it answers next."""
    _wanted: asyncio.Future[None] | None
    """What it waits for while none is due."""
    _active: Any
    """The cycle that is being answered, or was last; `cycle` is the newest."""
    _half: bool
    """A request is awaited or partly read."""
    _allowance: int
    """How many more bytes may come: of the present request, its body aside; after a fault, before the end."""
    held: bytes
    """Unread bytes that came after requests that wait for their answers."""
    modern: bool
    """A request of the connection was HTTP/1.1."""
    _why: GatewayError
    """The error for a client whose bytes the parser refuses."""
    _fault: GatewayError | None
    """Why the connection takes no more requests."""
    _unfinished_head: list[tuple[bytes, bytes]] | None
    """The headers of the request that was partly read at the last check."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(self)
        self.headers = []
        self._idle_since = self._due = self._wanted = self._active = None
        self._fault = self._unfinished_head = self.worker = None
        self._leaving: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._lost = self._evicted = self.modern = False
        self._half, self._allowance, self.held, self._why = True, MAX_HEAD, b"", MALFORMED
        self._number = next(_numbers)
        self._check_head()
        above = len(self.connections) - self.app.max_connections
        others: Iterable[Any] = (each for each in self.connections if each is not self)
        if above > 0 and not make_room(others):
            self.parser, self._why = _NO_PARSER, FULL
            if above > TURNED_AWAY:
                transport.abort()

    @property
    def closing_rank(self) -> tuple[int, float] | None:
        """See `gateway.server.connections.Connection`."""
        cycle = self.cycle
        if self._evicted:
            return None
        if self.transport.is_closing() or self._fault is not None:
            return 0, self._number
        if cycle is None:
            return 1, self._number
        if cycle.response_complete:
            return 2, self._idle_since or 0.0
        return (3, self._number) if cycle.more_body and not self.pipeline else None

    def evict(self) -> None:
        self._evicted = True
        self.transport.abort()

    def _check_head(self) -> None:
        """Ends a connection whose request has been partly read since the last check."""
        self._deadline = None
        answering = self.cycle is not None and not self.cycle.response_complete
        if self._half and self._unfinished_head is self.headers and not answering:
            self.transport.close()
            return
        self._unfinished_head = self.headers if self._half else None
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._check_head)

    def data_received(self, data: bytes) -> None:
        """The parser calls the `on_…` methods. `on_headers_complete` hands a chat to the connection's worker, which has
        `ChatCycle.run_asgi` check its key and answer it."""
        size = len(data)
        if size > PIECE or self.held:
            self._in_pieces(data)
            return
        self._idle_since = None
        self._allowance -= size
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                if self.cycle is not _OFFERED:
                    self._end(NO_TUNNELS)
                    return
                if self._asks_for_websocket():
                    self._become_websocket(data[offer.args[0] :])
                    return
                data = self._without_upgrade() + data[offer.args[0] :]
            except httptools.HttpParserError:
                self._end(self._why)
                return
            else:
                break
        if self._allowance < 0:
            self._end(TOO_LONG)

    def _in_pieces(self, data: bytes) -> None:
        """Leaves bytes after requests that wait for their answers unread until these are answered."""
        data = self.held + data
        self.held = b""
        for at in range(0, len(data), PIECE):
            if self.pipeline and self._fault is None:
                self.held = data[at:]
                return
            self.data_received(data[at : at + PIECE])

    def _end(self, error: GatewayError) -> None:
        """Takes no more requests: answers the received ones, then sends the client the reason."""
        if self._fault is not None:
            if self._allowance < 0:
                self.transport.abort()
            return
        self._fault, self.parser, self._half, self.held = error, _NO_PARSER, False, b""
        self._allowance = MAX_HEAD
        cycle = self.cycle
        if cycle is not None and cycle.more_body and not cycle.response_complete:
            if self.pipeline:
                self.pipeline.popleft()  # its body never ends, and its answer hasn't begun
            else:
                cycle.disconnected = True
                cycle.waiting_for_100_continue = False
                cycle.message_event.set()
                if cycle.response_started:
                    self.transport.close()
                else:
                    self._tell(error)
                return
        if self._active is None or self._active.response_complete:
            self._tell(error)

    def _tell(self, error: GatewayError) -> None:
        """The last answer."""
        if self.transport.is_closing():
            return
        body = encode(error.body())
        head = _head(error.status, (JSON_TYPE, *error.headers()), False, self.server_state.default_headers)
        self.transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))
        self._linger()

    def _linger(self) -> None:
        """Closes behind the last answer, but first discards up to `_allowance` bytes: closing at once would take the
        answer from a client that still sends."""
        if self._deadline is not None:
            self._deadline.cancel()
        if self.transport.can_write_eof():  # not with TLS
            self.transport.write_eof()
        self.flow.resume_reading()
        self._deadline = self.loop.call_later(LINGER_SECONDS, self.transport.abort)

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
        self.headers = []
        self.parser = httptools.HttpRequestParser(self)
        return b"\r\n".join((*lines, b"", b""))

    def _asks_for_websocket(self) -> bool:
        """Whether the head that has come asks for one where there is one, and no earlier request is unanswered."""
        before = self._before
        return (
            self.url.partition(b"?")[0] in self.app.websockets
            and self.parser.get_method() == b"GET"
            and any(name == b"upgrade" and value.lower() == b"websocket" for name, value in self.headers)
            and (before is None or before.response_complete)
        )

    def _become_websocket(self, rest: bytes) -> None:
        """Hands the connection over. rest: what came behind the head."""
        from gateway.server.websocket import WebSocket

        app: HotApp = self.app
        other = WebSocket(
            bodies=app.bodies,
            max_body=app.max_body,
            config=self.config,
            server_state=self.server_state,
            app_state=self.app_state,
        )
        lines = [b"GET %b HTTP/1.1" % self.url, *(b"%b: %b" % pair for pair in self.headers), b"", b""]
        transport = self.transport
        for timer in (self._deadline, self._leaving, self._stalled, self.timeout_keep_alive_task):
            if timer is not None:
                timer.cancel()
        self._lost = True
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)
        self.connections.discard(self)
        self.flow.protocol = self.cycle = self._active = None  # type: ignore[attr-defined, assignment]
        transport.set_protocol(other)
        other.connection_made(transport)
        other.data_received(b"\r\n".join(lines) + rest)

    def on_message_begin(self) -> None:
        self.url = b""
        self._half = True
        self._allowance = MAX_HEAD

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._before, self.cycle = self.cycle, _OFFERED
            return
        if self.url not in self.app.hot_paths or self.parser.get_method() != b"POST":
            self._tell_uvicorn()
        else:
            before = self.cycle
            self.cycle = cycle = ChatCycle(self)  # type: ignore[assignment]
            if before is None or before.response_complete:
                self._start_asgi_task(cycle, self.app)
            else:
                self.flow.pause_reading()
                self.pipeline.appendleft((cycle, self.app))  # type: ignore[arg-type]
                self._ahead()
        self.headers = []

    def _tell_uvicorn(self) -> None:
        """The head that has come, for the scope that a chat doesn't need."""
        url, headers = self.url, self.headers
        super().on_message_begin()
        super().on_url(url)
        for name, value in headers:
            super().on_header(name, value)
        super().on_headers_complete()
        if self.pipeline:
            self._ahead()

    def _ahead(self) -> None:
        """Polls for the client's departure: it isn't read from while its pipelined requests wait."""
        if self._leaving is None:
            self._leaving = self.loop.call_later(DEPARTURE_SECONDS, self._detect_departure)

    def _detect_departure(self) -> None:
        self._leaving = None
        if has_left(self.transport):
            self.transport.abort()
        elif self.pipeline:
            self._ahead()

    def on_body(self, body: bytes) -> None:
        self._allowance += len(body) + FRAMING
        cycle: Any = self.cycle
        if not cycle.response_complete:
            cycle.body += body
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            if type(cycle) is not ChatCycle or cycle.arrived is not None:
                cycle.message_event.set()

    def on_message_complete(self) -> None:
        self._half = False
        cycle: Any = self.cycle
        if self.headers and cycle is not _OFFERED:
            self.headers = []  # trailers, which nothing uses
        if not cycle.response_complete:
            cycle.more_body = False
            if type(cycle) is not ChatCycle or cycle.arrived is not None:
                cycle.message_event.set()

    def on_response_complete(self) -> None:
        """As uvicorn's, but with one keep-alive timer per connection, not per response."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            self._next()
            return
        if self._fault is not None:
            self._tell(self._fault)
            return
        if self.cycle.more_body and self.cycle.response_complete:
            # It was answered before its body had come. Whoever goes on sending it gets no more of the gateway's time.
            self._fault, self.parser, self._half, self._allowance = TOO_LONG, _NO_PARSER, False, self.app.max_body
            self._linger()
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._close_in(self.timeout_keep_alive)

    def _next(self) -> None:
        """Begins the next pipelined request, if the client is still connected."""
        if has_left(self.transport):
            self.transport.abort()
            return
        self._start_asgi_task(*self.pipeline.pop())
        if not self.pipeline and self.held:
            self._in_pieces(b"")
        self.flow.resume_reading()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._active = cycle
        if type(cycle) is not ChatCycle:
            super()._start_asgi_task(cycle, _closing(cycle, app))  # type: ignore[arg-type]  # uvicorn has a type for each message
            return
        self._due = cycle
        wanted, self._wanted = self._wanted, None
        if wanted is not None and not wanted.done():
            wanted.set_result(None)
        elif self.worker is None or self.worker.done():
            self.worker = self.loop.create_task(self._work(app))
            self.tasks.add(self.worker)
            self.worker.add_done_callback(self.tasks.discard)

    async def _work(self, app: HotApp) -> None:
        while not self._lost:
            cycle, self._due = self._due, None
            if cycle is not None:
                await cycle.run_asgi(app)
            else:
                self._wanted = self.loop.create_future()
                await self._wanted

    def pause_writing(self) -> None:
        super().pause_writing()
        if type(self._active) is ChatCycle:
            self._active.ready = False
        self._stalled = self.loop.call_later(SLOW_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if type(self._active) is ChatCycle:
            self._active.ready = not self._active.disconnected
        if self._stalled is not None:
            self._stalled.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self.pipeline.clear()
        self.held = b""
        active = self._active
        if active is not None and active is not self.cycle:
            active.disconnected = True
            active.message_event.set()
        super().connection_lost(exc)
        for timer in (self._deadline, self._leaving, self._stalled):
            if timer is not None:
                timer.cancel()
        self._lost = True
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)
        # No circles: else a collection would have to find each connection that is gone.
        self.flow.protocol = self.cycle = self._active = None  # type: ignore[attr-defined, assignment]

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
    """Caches response heads. uvicorn makes a new list of headers for each new Date, which invalidates them."""

    def __init__(self) -> None:
        self._own: list[tuple[bytes, bytes]] | None = None
        self._known: dict[tuple[int, Headers, bool], bytes] = {}
        self._status, self._keep_alive, self._last = 0, False, b""
        self._headers: Headers | None = None
        """The last head: a comparison costs less than a table lookup."""

    def head(self, status: int, headers: Headers, keep_alive: bool, own: list[tuple[bytes, bytes]]) -> bytes:
        """Without the empty line at the end. own: the headers that uvicorn adds."""
        if own is not self._own:
            self._own = own
            self._known.clear()
        elif headers is self._headers and status == self._status and keep_alive is self._keep_alive:
            return self._last
        key = status, headers, keep_alive
        found = self._known.get(key)
        if found is None:
            lines = [b"%b: %b\r\n" % pair for pair in (*own, *headers)]
            found = self._known[key] = b"".join((STATUS_LINE[status], *lines, b"" if keep_alive else CLOSE))
        self._status, self._headers, self._keep_alive, self._last = status, headers, keep_alive, found
        return found


_head = _Heads().head


def _closing(cycle: RequestResponseCycle, app: ASGIApp) -> ASGIApp:
    """The application, whose answer tells the client not to use the connection again if it begins before the request's
    body has come: nobody reads the rest. `on_response_complete` closes it then, once the client had time to read."""

    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] != "http.response.start" or not (cycle.more_body and cycle.keep_alive):
                await send(message)
                return
            await send({**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]})
            cycle.keep_alive = True  # else uvicorn would close at once, and could take the answer from the client

        await app(scope, receive, sent)

    return answered


class ChatCycle:
    """One request and its answer: what uvicorn reads of a cycle, and a `Client` for `Chat`."""

    __slots__ = (
        *("_chunked", "_granted", "_headers", "_left", "_meter", "_protocol", "_task", "arrived", "body"),
        *("disconnected", "keep_alive", "more_body", "ready", "response_complete"),
        *("waiting_for_100_continue", "wrote"),
    )
    response_started = False
    """For uvicorn: an answer doesn't begin before the whole body is there."""

    def __init__(self, protocol: FastProtocol) -> None:
        self.body: bytes | bytearray = b""
        self.more_body = True
        self.disconnected = False
        self.response_complete = False
        self.wrote = False
        self.ready = False
        """Whether the client takes pushed events: it is there and keeps up."""
        keep_alive = protocol.parser.should_keep_alive()
        # httptools writes the version as a string, anew each time: a client that goes on isn't asked again.
        self._chunked = (protocol.modern and keep_alive) or protocol.parser.get_http_version() == "1.1"
        protocol.modern = self._chunked
        self.keep_alive = self._chunked and keep_alive
        self._granted: Headers = ()
        """Headers for the web page that asks."""
        self._meter: Meter | None = None
        """Of the key's limits, once it has counted the request in."""
        self._left = 0
        """How many more requests it allowed then."""
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
            self.ready = False
            if self._task is not None:
                self._task.cancel()
        elif self.arrived is not None and not self.arrived.done():
            self.arrived.set_result(None)

    async def run_asgi(self, app: HotApp) -> None:
        if self.disconnected:
            return
        self._task = self._protocol.worker
        caller = None
        try:
            access = app.access
            self._granted = access.admit(self._headers, not self._chunked)
            agent = access.agent
            principal = app.keyring.anybody() or app.authenticate(self._headers)
            if tenant.get() != principal.tenant:
                tenant.set(principal.tenant)
            caller = app.callers.known(agent, principal) or await app.caller(agent, principal)
            if (meter := caller.meter) is not None:
                self._left = meter.enter()
                self._meter = meter
            if self.more_body or len(self.body) > app.max_body or self._protocol.flow.read_paused:
                await self._answer_large(app, caller, principal)
            else:
                body, self.body = bytes(self.body), b""
                await app.answer_hot(body, self._headers, self, caller)
        except GatewayError as error:
            if caller is not None:
                app.refused(caller, error, bytes(self.body) if len(self.body) <= HIGH_WATER_LIMIT else b"")
            self.keep_alive = self.keep_alive and not self.more_body
            left = openai_headers(error.standing, time()) if isinstance(error, LimitReached) else ()
            await respond_error(self, error, left)
        except asyncio.CancelledError:
            if not self.disconnected:
                self._protocol.transport.close()
                raise
        except Exception:
            log.exception("the fast protocol failed")
            self._protocol.transport.close()
        finally:
            self._task = None
            if (meter := self._meter) is not None:
                meter.leave()

    async def _answer_large(self, app: HotApp, caller: Caller, principal: Principal) -> None:
        body = Body(app.bodies, app.max_body, principal)
        try:
            await app.answer_hot(await self._read(body), self._headers, self, caller)
        finally:
            body.close()

    async def _read(self, body: Body) -> bytes:
        if self.more_body:
            body.announced(self._headers)
            if any(name == b"expect" and value.lower() == b"100-continue" for name, value in self._headers):
                self._protocol.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.body = bytearray(self.body)
            while self.more_body:
                body.has(len(self.body))
                self._protocol.flow.resume_reading()
                self.arrived = asyncio.get_running_loop().create_future()
                async with body.patience():
                    await self.arrived
        body.has(len(self.body))
        # uvicorn paused for the body, and a paused transport can't report a disconnect.
        self._protocol.flow.resume_reading()
        whole, self.body = bytes(self.body), b""
        return whole

    # Client

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        if self._granted:
            headers = (*headers, *self._granted)
        head = _head(status, headers, self.keep_alive, self._protocol.server_state.default_headers)
        if (meter := self._meter) is None:
            self._protocol.transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))
        else:
            self._protocol.transport.write(meter.answer(head, self._left, body))
        self._complete()

    async def start(self, headers: Headers) -> None:
        self.keep_alive = self.keep_alive and self._chunked
        if self._granted:
            headers = (*headers, *self._granted)
        head = _head(200, headers, self.keep_alive, self._protocol.server_state.default_headers)
        if (meter := self._meter) is not None:
            head += meter.lines(self._left)
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
        self.ready = not self._protocol.flow.write_paused
        return self

    # Sink

    def push(self, data: bytes) -> None:
        self.wrote = True
        self._protocol.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def _complete(self) -> None:
        self.response_complete = True
        if not self.keep_alive and not self.more_body:
            self._protocol.transport.close()
        self._protocol.on_response_complete()

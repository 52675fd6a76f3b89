"""The ASGI application: lifespan, keys, errors, the hot route; Starlette's router answers every other path."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from time import time
from typing import TYPE_CHECKING, Any

from uvicorn.importer import import_from_string

from gateway.api import health, routes
from gateway.api.chat import PATHS, Chat, chat_asgi, log
from gateway.errors import GatewayError, ProviderAuthentication
from gateway.server import connections, keys
from gateway.server.access import Access
from gateway.server.asgi import ASGIApp, Headers, Message, MethodNotAllowed, Receive, Scope, Send, not_found
from gateway.server.bodies import SCOPE_KEY as BODY_KEY
from gateway.server.bodies import Bodies, Body
from gateway.server.client import INTERNAL, JSON_TYPE, ASGIClient, Client
from gateway.server.keys import KeyFile, Keyring
from gateway.server.principal import ANYBODY, CALLER_KEY, LOCAL, SCOPE_KEY, Callers, Principal
from gateway.services import Services
from gateway.wire.chat import Caller, Meter, encode

if TYPE_CHECKING:
    from gateway.wire.limits import Standing

LEFT_KEY = "ctxgate.left"
"""The key in an ASGI scope of the headers that say what is left of a key's limits."""
OPEN_PATHS = ("/health", "/ready", "/")
"""Need no key: supervisors have none, nor do clients that only check that a server is there."""
PAGE = "/ui/"
"""The files below it need no key either: the page asks the person for one."""


RECORDED = "/-/chat/completions"
"""Makes a model work, too."""

OTHER_KEYS = (b"x-api-key", b"api-key")
"""Headers for the key besides `Authorization: Bearer`: Anthropic's and Azure's."""


class API:
    """The gateway over HTTP. With `server.api_keys` or keys of `ctxgate keys`, every path but OPEN_PATHS needs a key.

    background: entered after the gateway and left before it.
    """

    def __init__(
        self, services: Services, background: Callable[[], AbstractAsyncContextManager[object]] = nullcontext
    ) -> None:
        gateway = services.gateway
        self.chat = Chat(gateway)
        self.hot_paths = frozenset(path.encode() for path in PATHS)
        self.answer_hot = self.chat.answer
        self._continue_trace: Callable[[Headers], None] = lambda headers: None
        if gateway.traced:
            from gateway.observe.traces import continue_trace

            self._continue_trace = continue_trace
            self.answer_hot = self._answer_traced
        self._websockets = {
            spelling: handler for path, handler in routes.WEBSOCKETS.items() for spelling in routes.spellings(path)
        }
        self.websocket_paths = frozenset(path.encode() for path in self._websockets)
        self.bodies = Bodies(gateway.config.server.max_bodies_bytes)
        self.callers = Callers()
        self._services = services
        services.answer_as = self.answer_as
        self._router: ASGIApp | None = None
        self._background = background
        self._apply()
        gateway.on_change(self._configured)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        self._continue_trace(scope["headers"])
        if scope["type"] != "http":
            await self._websocket(scope, receive, send)
            return
        body = Body(self.bodies, self.max_body)
        scope[BODY_KEY] = body
        try:
            await self._admitted(scope, receive, send)
        except GatewayError as error:
            await _send_error(send, error, scope["path"])
        finally:
            body.close()

    async def _answer_traced(self, body: bytes, headers: Headers, client: Client, caller: Caller) -> None:
        self._continue_trace(headers)
        await self.chat.answer(body, headers, client, caller)

    async def _admitted(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises what `Access.admit` raises."""
        headers, method = scope["headers"], scope["method"]
        page = scope["path"] == "/" and method in ("GET", "HEAD") and (b"sec-fetch-dest", b"document") in headers
        granted = self.access.admit(headers, old=scope["http_version"] < "1.1", page=page)
        if granted:
            if method == "OPTIONS" and (told := self.access.preflight(headers)):
                await ASGIClient(send).whole(200, (*granted, *told), b"")
                return
            send = _with_headers(send, granted)
        await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        started = False

        async def tracked(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            agent = self.access.agent
            is_open = path in OPEN_PATHS or path.startswith(PAGE)
            principal = ANYBODY if is_open else self.authenticate(scope["headers"], keys.wanted(method, path))
            await self.answer_as(principal, agent, scope, receive, tracked)
        except GatewayError as error:
            if started:
                raise
            if method == "POST" and not error.booked:
                self._refused(scope, error)
            await _send_error(_with_headers(send, scope.get(LEFT_KEY, ())), error, path)
        except Exception:
            log.exception("%s %s failed", method, path)
            if started:
                raise
            await _send_error(_with_headers(send, scope.get(LEFT_KEY, ())), INTERNAL, path)

    def _refused(self, scope: Scope, error: GatewayError) -> None:
        """Logs a request to a model that none got to see. One without a valid key leaves no trace: else strangers
        could push the requests of others out of the log."""
        api, caller = routes.MODEL_APIS.get(scope["path"].removeprefix("/v1").rstrip("/")), scope.get(CALLER_KEY)
        if api is not None and caller is not None:
            self.chat.gateway.request_log.refused(api, caller, error, scope[BODY_KEY].content)

    async def answer_as(self, principal: Principal, agent: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request that came over no connection of its own, within the principal's limits.

        Raises GatewayError.
        """
        scope[SCOPE_KEY] = principal
        caller = scope[CALLER_KEY] = await self.caller(agent, principal)
        if caller.meter is None:
            await self._dispatched(scope, receive, send)
        else:
            await self._limited(caller.meter, scope, receive, send)

    async def _limited(self, meter: Meter, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises LimitReached. Only what makes models work counts as a request."""
        path = scope["path"]
        if scope["method"] != "POST" or (path != RECORDED and keys.wanted("POST", path) != "models"):
            await self._dispatched(scope, receive, send)
            return
        headers: Callable[[Standing, float], Headers] = import_from_string(routes.routes_of(path).limits)
        meter.enter(headers)
        scope[LEFT_KEY] = left = headers(meter.standing(), time())
        try:
            await self._dispatched(scope, receive, _with_headers(send, left))
        finally:
            meter.ended += 1

    async def caller(self, agent: bytes, principal: Principal) -> Caller:
        """Raises what `Limiter.meter` raises."""
        if (known := self.callers.known(agent, principal)) is not None:
            return known
        if principal.limits is None:
            return self.callers.add(agent, principal)
        from gateway.server.limits import limiter  # most gateways have no limits

        return self.callers.add(agent, principal, await self._services.shared(limiter).meter(principal))

    async def _dispatched(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        if path in PATHS:
            if method != "POST":
                raise MethodNotAllowed(method, path, ("POST",))
            await chat_asgi(self.chat, scope, receive, send)
        elif path in health.PATHS:
            await health.answer(self._services, scope, send)
        else:
            await self._routed(scope, receive, send)

    async def _routed(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._router is None:
            # Starlette costs more start time than everything that the hot route needs.
            from gateway.server import http

            self._router = http.router(
                (spelling, http.Endpoint(self._services, handlers, finishes=table.finishes), list(handlers))
                for table in routes.routes()
                for path, handlers in table.paths.items()
                for spelling in routes.spellings(path)
            )
        await self._router(scope, receive, send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A refusal is an answer over HTTP, as any other request gets it."""
        path = scope["path"]
        try:
            self.access.admit(scope["headers"])
            agent = self.access.agent
            principal = scope[SCOPE_KEY] = self.authenticate(scope["headers"])
            if path.encode() not in self.websocket_paths:
                raise not_found("GET", path)
        except GatewayError as error:
            await _send_error(_before_handshake(send), error, path)
            return
        scope[CALLER_KEY] = await self.caller(agent, principal)
        serve = import_from_string(self._websockets[path])
        await serve(self._services, self.bodies, scope, receive, send)

    def _configured(self) -> None:
        self.chat.configured()
        self._apply()

    def _apply(self) -> None:
        """Applies the gateway's current configuration."""
        server = self.chat.gateway.config.server
        self.keyring = self._keys()
        self.access = Access(
            None if server.uds is not None else (server.host, *server.allowed_hosts), server.cors_origins
        )
        self.max_body = server.max_body_bytes
        self.max_connections = connections.most(server.max_connections)
        self.bodies.most = server.max_bodies_bytes

    def _keys(self) -> Keyring:
        config = self.chat.gateway.config
        fixed = [key.get_secret_value() for key in config.server.api_keys]
        return Keyring(fixed, LOCAL, KeyFile(config.state_dir / keys.FILE), always=not config.server.is_private)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        phase = "startup"
        try:
            await receive()
            async with self.chat.gateway, self._background():
                try:
                    await send({"type": "lifespan.startup.complete"})
                    phase = "shutdown"
                    await receive()
                finally:
                    await self._services.close_shared()
        except BaseException:
            await send({"type": f"lifespan.{phase}.failed", "message": traceback.format_exc()})
            raise
        await send({"type": "lifespan.shutdown.complete"})

    def authenticate(self, headers: Headers, scope: str = "models") -> Principal:
        """The caller. Raises ProviderAuthentication without a valid key (401), or if the key lacks `scope` (403)."""
        given = b""
        for name, value in headers:  # of the hot path: a generator would be made for each request
            if name == b"authorization":
                given = value
                break
        scheme, _, key = given.partition(b" ")
        try:
            principal = self.keyring.principal(key.strip() if scheme.lower() == b"bearer" else None)
        except ProviderAuthentication:
            other = next((value for name, value in headers if name in OTHER_KEYS), None)
            if given or other is None:
                raise
            principal = self.keyring.principal(other)
        if not principal.allows(scope):
            raise ProviderAuthentication(f"this API key lacks the scope {scope}", code="insufficient_scope", status=403)
        return principal


def _with_headers(send: Send, more: Headers) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return sent


def _before_handshake(send: Send) -> Send:
    """Sends an answer over HTTP to a client that asked for a WebSocket."""

    async def sent(message: Message) -> None:
        await send({**message, "type": f"websocket.{message['type']}"})

    return sent


async def _send_error(send: Send, error: GatewayError, path: str) -> None:
    body: Callable[[GatewayError], Any] = import_from_string(routes.routes_of(path).errors)
    await ASGIClient(send).whole(error.status, (JSON_TYPE, *error.headers()), encode(body(error)))

"""The ASGI application: lifespan, keys, errors, and the hot route; `Dispatch` leads to the handlers of all paths."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any

from uvicorn.importer import import_from_string

from gateway.api import routes
from gateway.api.chat import PATHS, log
from gateway.api.dispatch import REMAINING_KEY, Dispatch, with_headers
from gateway.errors import GatewayError, ProviderAuthentication
from gateway.observe.shares import tenant
from gateway.server import connections, keys
from gateway.server.access import Access
from gateway.server.asgi import Headers, Message, Receive, Scope, Send, not_found
from gateway.server.bodies import SCOPE_KEY as BODY_KEY
from gateway.server.bodies import Bodies, Body
from gateway.server.client import INTERNAL, JSON_TYPE, ASGIClient, Client
from gateway.server.keys import KeyFile, Keyring
from gateway.server.principal import ADMIT_KEY, ANYBODY, CALLER_KEY, LOCAL, SCOPE_KEY, STRANGER_KEY, Principal
from gateway.services import Services
from gateway.wire.chat import Caller, encode

OPEN_PATHS = ("/health", "/ready", "/")
"""Need no key: supervisors have none, nor do clients that only check that a server is there."""
PAGE = "/ui/"
"""The files below it need no key either: the page asks the person for one."""


KEY_HEADERS = (b"x-api-key", b"api-key")
"""Headers for the key besides `Authorization: Bearer`: Anthropic's and Azure's."""


class API:
    """The gateway over HTTP. With `server.api_keys` or keys of `ctxgate keys`, every path but OPEN_PATHS needs a key.

    background: entered after the gateway and left before it.
    """

    def __init__(
        self, services: Services, background: Callable[[], AbstractAsyncContextManager[object]] = nullcontext
    ) -> None:
        gateway = services.gateway
        self._dispatch = services.shared(Dispatch)
        self.chat = self._dispatch.chat
        self.hot_paths = frozenset(path.encode() for path in PATHS)
        self.answer_hot: Callable[[bytes, Headers, Client, Caller], Coroutine[Any, Any, None]] = self.chat.answer
        self._continue_trace: Callable[[Headers], None] = lambda headers: None
        if gateway.traces is not None:
            self._continue_trace = gateway.traces.continued
            self.answer_hot = self._answer_traced
        self.websockets = {
            spelling.encode(): handler
            for path, handler in routes.websockets().items()
            for spelling in routes.spellings(path)
        }
        self.bodies = Bodies(gateway.config.server.max_bodies_bytes)
        self.callers = self._dispatch.callers
        self.caller = self._dispatch.caller
        self._services = services
        self._background = background
        self._apply()
        self.keyring.anybody()  # an unreadable file of keys ends the start, but no reload
        gateway.on_change(lambda: self._apply(self.keyring.needed))

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
            await _send_error(send, error, scope)
        finally:
            body.close()

    async def _answer_traced(self, body: bytes, headers: Headers, client: Client, caller: Caller) -> None:
        self._continue_trace(headers)
        await self.chat.answer(body, headers, client, caller)

    async def _admitted(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises what `Access.admit` raises, and ProviderInvalidRequest (404) for a path that nothing can have."""
        headers, method = scope["headers"], scope["method"]
        if min(scope["path"], default="/") < " ":  # the router takes a\n for a, which no other reader of a path does
            raise not_found(method, scope["path"])
        page = scope["path"] == "/" and method in ("GET", "HEAD") and (b"sec-fetch-dest", b"document") in headers
        granted = self.access.admit(headers, old=scope["http_version"] < "1.1", page=page)
        if granted:
            if method == "OPTIONS" and (told := self.access.preflight(headers)):
                await ASGIClient(send).whole(200, (*granted, *told), b"")
                return
            send = with_headers(send, granted)
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
            needed = keys.wanted(method, path)
            principal = ANYBODY if is_open else self.authenticate(scope["headers"], needed)
            scope[ADMIT_KEY] = partial(self._take, scope, agent, needed)
            scope[STRANGER_KEY] = is_open and _is_stranger(self.authenticate, scope["headers"])
            await self._dispatch.answer_as(principal, agent, scope, receive, tracked)
        except GatewayError as error:
            if started:
                raise
            if method == "POST" and not error.logged:
                self._refused(scope, error)
            await _send_error(with_headers(send, scope.get(REMAINING_KEY, ())), error, scope)
        except Exception:
            log.exception("%s %s failed", method, path)
            if started:
                raise
            await _send_error(with_headers(send, scope.get(REMAINING_KEY, ())), INTERNAL, scope)
        finally:
            scope.pop(ADMIT_KEY, None)  # it refers to the scope, which would keep the body until a garbage collection

    def refused(self, caller: Caller, error: GatewayError, body: bytes) -> None:
        self.chat.gateway.request_log.refused("chat", caller, error, body)

    def _refused(self, scope: Scope, error: GatewayError) -> None:
        """Logs a request that was refused before a model got to see it. One without a valid key leaves no trace: else
        strangers could push the requests of others out of the log."""
        api, caller = routes.model_apis().get(scope["path"].rstrip("/")), scope.get(CALLER_KEY)
        if api is not None and caller is not None:
            self.chat.gateway.request_log.refused(api, caller, error, scope[BODY_KEY].content)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A refusal is an answer over HTTP, as any other request gets it."""
        path = scope["path"]
        try:
            self.access.admit(scope["headers"])
            scope[ADMIT_KEY] = admit = partial(self._take, scope, self.access.agent, "models")
            await admit()
            if (serve := self.websockets.get(path.encode())) is None:
                raise not_found("GET", path)
        except GatewayError as error:
            await _send_error(_before_handshake(send), error, scope)
            return
        await import_from_string(serve)(self._services, self.bodies, scope, receive, send)

    async def _take(self, scope: Scope, agent: bytes, needed: str) -> None:
        """Notes whose request it is, by the present state of the key. Raises as `authenticate` and `caller`."""
        principal = scope[SCOPE_KEY] = self.authenticate(scope["headers"], needed)
        scope[CALLER_KEY] = await self.caller(agent, principal)
        tenant.set(principal.tenant)

    def _apply(self, needed: bool = False) -> None:
        """Applies the gateway's current configuration. needed: a key was needed until now."""
        config = self.chat.gateway.config
        server = config.server
        file, fixed = KeyFile(config.state_dir / keys.FILE), [key.get_secret_value() for key in server.api_keys]
        self.keyring = Keyring(fixed, LOCAL, file, always=needed or not server.is_private)
        self.access = Access(
            None if server.uds is not None else (server.host, *server.allowed_hosts), server.cors_origins
        )
        self.max_body = server.max_body_bytes
        self.max_connections = connections.maximum(server.max_connections)
        self.bodies.maximum = server.max_bodies_bytes

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
            other = next((value for name, value in headers if name in KEY_HEADERS), None)
            if given or other is None:
                raise
            principal = self.keyring.principal(other)
        if not principal.allows(scope):
            raise ProviderAuthentication(f"this API key lacks the scope {scope}", code="insufficient_scope", status=403)
        return principal


def _is_stranger(authenticate: Callable[[Headers], Principal], headers: Headers) -> bool:
    """Whether the caller needs a key and has none, or nobody can tell."""
    try:
        authenticate(headers)
    except GatewayError as error:
        return error.status != 403
    return False


def _before_handshake(send: Send) -> Send:
    """Sends an answer over HTTP to a client that asked for a WebSocket."""

    async def sent(message: Message) -> None:
        await send({**message, "type": f"websocket.{message['type']}"})

    return sent


async def _send_error(send: Send, error: GatewayError, scope: Scope) -> None:
    body: Callable[[GatewayError], Any] = import_from_string(routes.routes_of(scope["path"], scope["headers"]).errors)
    await ASGIClient(send).whole(error.status, (JSON_TYPE, *error.headers()), encode(body(error)))

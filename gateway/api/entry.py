"""The ASGI application: lifespan, keys, errors, the hot route; Starlette's router answers every other path."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from uvicorn.importer import import_from_string

from gateway.api import health, routes
from gateway.api.chat import PATHS, Chat, chat_asgi, log
from gateway.errors import GatewayError, ProviderAuthentication
from gateway.server import connections, keys
from gateway.server.access import Access
from gateway.server.asgi import ASGIApp, Headers, Message, MethodNotAllowed, Receive, Scope, Send
from gateway.server.bodies import SCOPE_KEY as BODY_KEY
from gateway.server.bodies import Bodies, Body
from gateway.server.client import INTERNAL, JSON_TYPE, ASGIClient
from gateway.server.keys import KeyFile, Keyring
from gateway.server.principal import ANYBODY, LOCAL, SCOPE_KEY, Principal
from gateway.services import Services
from gateway.wire.chat import encode

OPEN_PATHS = ("/health", "/ready", "/")
"""Need no key: supervisors have none, nor do clients that only check that a server is there."""


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
        self.bodies = Bodies(gateway.config.server.max_bodies_bytes)
        self._services = services
        self._router: ASGIApp | None = None
        self._background = background
        self._apply()
        gateway.on_change(self._configured)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        body = Body(self.bodies, self.max_body)
        scope[BODY_KEY] = body
        try:
            await self._admitted(scope, receive, send)
        except GatewayError as error:
            await _send_error(send, error, scope["path"])
        finally:
            body.close()

    async def _admitted(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises what `Access.admit` raises."""
        headers, method = scope["headers"], scope["method"]
        page = scope["path"] == "/" and method in ("GET", "HEAD") and (b"sec-fetch-dest", b"document") in headers
        granted = self.admit(headers, old=scope["http_version"] < "1.1", page=page)
        if granted:
            if method == "OPTIONS" and (told := self._access.preflight(headers)):
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
            scope[SCOPE_KEY] = (
                ANYBODY if path in OPEN_PATHS else self.authenticate(scope["headers"], keys.wanted(method, path))
            )
            if path in PATHS:
                if method != "POST":
                    raise MethodNotAllowed(method, path, ("POST",))
                await chat_asgi(self.chat, scope, receive, send)
            elif path in health.PATHS:
                await health.answer(self._services, scope, tracked)
            else:
                await self._routed(scope, receive, tracked)
        except GatewayError as error:
            if started:
                raise
            await _send_error(send, error, path)
        except Exception:
            log.exception("%s %s failed", method, path)
            if started:
                raise
            await _send_error(send, INTERNAL, path)

    async def _routed(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._router is None:
            # Starlette costs more start time than everything that the hot route needs.
            from gateway.server import http

            self._router = http.router(
                (spelling, http.Endpoint(self._services, handlers, finishes=api.finishes), list(handlers))
                for api in routes.APIS
                for path, handlers in api.paths.items()
                for spelling in routes.spellings(path)
            )
        await self._router(scope, receive, send)

    def _configured(self) -> None:
        self.chat.configured()
        self._apply()

    def _apply(self) -> None:
        """Applies the gateway's current configuration."""
        server = self.chat.gateway.config.server
        self.keyring = self._keys()
        self._access = Access(
            None if server.uds is not None else (server.host, *server.allowed_hosts), server.cors_origins
        )
        self.admit = self._access.admit
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
        if (anybody := self.keyring.anybody()) is not None:
            return anybody
        given = next((value for name, value in headers if name == b"authorization"), b"")
        scheme, _, key = given.partition(b" ")
        try:
            principal = self.keyring.principal(key.strip() if scheme.lower() == b"bearer" else None)
        except ProviderAuthentication:
            other = next((value for name, value in headers if name == b"x-api-key"), None)
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


async def _send_error(send: Send, error: GatewayError, path: str) -> None:
    body: Callable[[GatewayError], Any] = import_from_string(routes.errors_for(path))
    await ASGIClient(send).whole(error.status, (JSON_TYPE, *error.headers()), encode(body(error)))

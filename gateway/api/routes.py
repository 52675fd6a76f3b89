"""The ASGI application: the hot route first, every other path to its face."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext

from gateway.api.chat import (
    INTERNAL,
    JSON_TYPE,
    PATHS,
    ASGIClient,
    Chat,
    chat_asgi,
    log,
)
from gateway.api.endpoint import MethodNotAllowed
from gateway.core import Gateway
from gateway.errors import GatewayError, ProviderAuthentication, ProviderInvalidRequest
from gateway.server import keys
from gateway.server.asgi import Headers, Message, Receive, Scope, Send
from gateway.server.keys import KeyFile, Keyring
from gateway.server.principal import ANYBODY, LOCAL, SCOPE_KEY, Principal
from gateway.services import Face
from gateway.wire.chat import encode

OPEN_PATHS = ("/health", "/ready", "/")
"""Answered without a key: a supervisor has none, nor has a client that looks whether there is anything."""


class API:
    """`gateway` over HTTP. With `server.api_keys` or keys of `ctxgate keys`, every path but `/health` asks for one.

    faces: what answers below each path prefix, made on its first request.
    background: entered after the gateway and left before it.
    """

    def __init__(
        self,
        gateway: Gateway,
        faces: Mapping[str, Callable[[], Face]] | None = None,
        background: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
    ) -> None:
        self.chat = Chat(gateway)
        self.hot_paths = frozenset(path.encode() for path in PATHS)
        self.answer_hot = self.chat.answer
        self._factories = faces or {}
        self._faces: dict[str, Face] = {}
        self._background = background
        config = gateway.config
        self._keyring = self._keys()
        gateway.on_change(self._configured)
        self._app: Callable[[Scope, Receive, Send], Awaitable[None]] = self._answer
        if origins := config.server.cors_origins:
            from gateway.server import cors

            self._app = cors.allowing(origins, self._answer)

    @property
    def max_body(self) -> int:
        return self.chat.max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        await self._app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        face: Face | None = None
        started = False

        async def tracked(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            face = None if path in PATHS else self._face(path)
            open_to_all = path in OPEN_PATHS
            wanted = keys.wanted(scope["method"], path)
            scope[SCOPE_KEY] = ANYBODY if open_to_all else self.authenticate(scope["headers"], wanted)
            if face is not None:
                await face(scope, receive, tracked)
            elif path in PATHS:
                if scope["method"] != "POST":
                    raise MethodNotAllowed(f"{scope['method']} {path}", ("POST",))
                await chat_asgi(self.chat, scope, receive, send)
            else:
                message = f"{scope['method']} {path}: no such endpoint"
                raise ProviderInvalidRequest(message, code="not_found", status=404)
        except GatewayError as error:
            if started:
                raise
            await _tell(send, error, face)
        except Exception:
            log.exception("%s %s failed", scope["method"], path)
            if started:
                raise
            await _tell(send, INTERNAL, face)

    def _configured(self) -> None:
        self._keyring = self._keys()
        self.chat.configured()

    def _keys(self) -> Keyring:
        config = self.chat.gateway.config
        fixed = [key.get_secret_value() for key in config.server.api_keys]
        return Keyring(fixed, LOCAL, KeyFile(config.state_dir / keys.FILE), always=not config.server.is_private)

    def _face(self, path: str) -> Face | None:
        for prefix, make in self._factories.items():
            if path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("", "/"):
                if (face := self._faces.get(prefix)) is None:
                    face = self._faces[prefix] = make()
                return face
        return None

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
                    async with AsyncExitStack() as faces:
                        for face in {*self._faces.values()}:
                            faces.push_async_callback(face.aclose)
        except BaseException:
            await send({"type": f"lifespan.{phase}.failed", "message": traceback.format_exc()})
            raise
        await send({"type": "lifespan.shutdown.complete"})

    def authenticate(self, headers: Headers, scope: str = "models") -> Principal:
        """Who sends a request with these headers. Raises ProviderAuthentication unless it may do what `scope` says."""
        if (anybody := self._keyring.anybody()) is not None:
            return anybody
        given = next((value for name, value in headers if name == b"authorization"), b"")
        scheme, _, key = given.partition(b" ")
        try:
            principal = self._keyring.principal(key.strip() if scheme.lower() == b"bearer" else None)
        except ProviderAuthentication:
            other = next((value for name, value in headers if name == b"x-api-key"), None)
            if given or other is None:
                raise
            principal = self._keyring.principal(other)
        if not principal.allows(scope):
            raise ProviderAuthentication(f"this API key lacks the scope {scope}", code="insufficient_scope", status=403)
        return principal


async def _tell(send: Send, error: GatewayError, face: Face | None) -> None:
    body = encode(error.body()) if face is None else face.error_body(error)
    await ASGIClient(send).whole(error.status, (JSON_TYPE, *error.headers()), body)

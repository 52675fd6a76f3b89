"""The ASGI application: the hot route first, everything else through Starlette's router."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from gateway import __version__, keys
from gateway.api.chat import (
    INTERNAL,
    JSON_TYPE,
    PATHS,
    ASGIClient,
    Chat,
    chat_asgi,
    log,
)
from gateway.api.cors import Cors, granting
from gateway.api.models import model_list, model_object
from gateway.asgi import Headers, Message, Receive, Scope, Send
from gateway.core import Gateway
from gateway.errors import GatewayError, ProviderAuthentication, ProviderInvalidRequest
from gateway.keys import KeyFile, Keyring
from gateway.principal import LOCAL, SCOPE_KEY, Principal
from gateway.reload import Reloader
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
        reloader: Reloader | None = None,
    ) -> None:
        self.chat = Chat(gateway)
        self.reloader = reloader
        self._factories = faces or {}
        self._faces: dict[str, Face] = {}
        self._background = background
        config = gateway.config
        self._keyring = self._keys()
        gateway.on_change(self._configured)
        self._cors = Cors(config.server.cors_origins) if config.server.cors_origins else None
        self._others = _router(gateway, self._lifespan, reloader)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._others(scope, receive, send)
            return
        path: str = scope["path"]
        if self._cors is not None and (origin := self._cors.allowed(scope)) is not None:
            if await self._cors.preflight(scope, origin, send):
                return
            send = granting(send, origin)
        face: Face | None = None
        started = False

        async def tracked(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            face = None if path in PATHS else self._face(path)
            if path not in OPEN_PATHS:
                scope[SCOPE_KEY] = self.authenticate(scope["headers"], keys.wanted(scope["method"], path))
            if face is not None:
                await face(scope, receive, tracked)
            elif path in PATHS:
                if scope["method"] != "POST":
                    error = _method_not_allowed(scope["method"], path, "POST")
                    await ASGIClient(send).whole(error.status, (JSON_TYPE, (b"allow", b"POST")), encode(error.body()))
                    return
                await chat_asgi(self.chat, scope, receive, send)
            else:
                if path.startswith("/v1/"):
                    scope["path"] = path.removeprefix("/v1")
                await self._others(scope, receive, tracked)
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

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        async with self.chat.gateway, self._background():
            try:
                yield
            finally:
                for face in {*self._faces.values()}:
                    await face.aclose()

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


def _method_not_allowed(method: str, path: str, allowed: str) -> GatewayError:
    return ProviderInvalidRequest(f"{method} {path}: use {allowed}", code="method_not_allowed", status=405)


def _router(
    gateway: Gateway, lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]], reloader: Reloader | None
) -> Starlette:
    async def health(request: Request) -> Response:
        engines = {name: route.engine.state for name, route in gateway.routes.items() if route.engine is not None}
        body = {"status": "ok", "version": __version__, "active_model": gateway.config.active_model}
        if reloader is not None and reloader.problems:
            # What is wrong may be told to whoever has a key alone.
            body["config"] = "the file has mistakes, the last good one is served: see `ctxgate status`"
        return JSONResponse({**body, "engines": engines})

    looking: set[asyncio.Task[None]] = set()

    async def models(request: Request) -> Response:
        # What only a model's files tell is there the next time.
        for route in gateway.routes.values():
            if not route.evidence:
                task = asyncio.create_task(route.look())
                looking.add(task)
                task.add_done_callback(looking.discard)
        return Response(encode(model_list(gateway, [*gateway.routes.values()])), media_type="application/json")

    async def model(request: Request) -> Response:
        shown = model_object(gateway, gateway.route(request.path_params["name"]))
        return Response(encode(shown), media_type="application/json")

    async def root(request: Request) -> Response:
        return PlainTextResponse("ctxgate is running")

    async def ready(request: Request) -> Response:
        name = gateway.route(request.path_params["name"]).model.name
        await gateway.ready(name)
        return JSONResponse({"id": name, "ready": True})

    async def ready_now(request: Request) -> Response:
        """Whether requests are answered at once; starts nothing. Without a name only the states are told: no key."""
        name = request.path_params.get("name")
        route = gateway.route(name)
        error = await route.readiness()
        engine = route.engine
        body = {"id": route.model.name, "ready": error is None, "state": engine.state if engine is not None else None}
        if error is None:
            return JSONResponse(body)
        headers = {name.decode(): value.decode() for name, value in error.headers()}
        return JSONResponse(body if name is None else {**body, **error.body()}, 503, headers)

    async def gateway_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, GatewayError)
        headers = {name.decode(): value.decode() for name, value in error.headers()}
        return JSONResponse(error.body(), error.status, headers)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        where = f"{request.method} {request.url.path}"
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "another method")
            failure = _method_not_allowed(request.method, request.url.path, allowed)
        else:
            failure = ProviderInvalidRequest(f"{where}: no such endpoint", code="not_found", status=error.status_code)
        return JSONResponse(failure.body(), failure.status, error.headers)

    return Starlette(
        routes=[
            Route("/", root),
            Route("/health", health),
            Route("/ready", ready_now),
            Route("/ready/{name:path}", ready_now),
            Route("/models", models),
            Route("/models/", models),
            Route("/models/{name}/ready", ready),
            Route("/models/{name:path}", model),
        ],
        exception_handlers={GatewayError: gateway_error, HTTPException: http_error},
        lifespan=lifespan,
    )

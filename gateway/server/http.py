"""Endpoints on Starlette: its router, requests whose bodies are bounded, JSON answers and event streams.

Every API but the hot route stands on this module; the first request that needs it imports it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import BinaryIO, TypeVar
from urllib.parse import quote

from starlette import requests
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, Router
from uvicorn.importer import import_from_string

from gateway.core import Gateway
from gateway.core.in_thread import LARGE, in_thread_if_large
from gateway.errors import GatewayError, ProviderInvalidRequest
from gateway.server.asgi import (
    ASGIApp,
    ClientGone,
    Headers,
    MethodNotAllowed,
    Receive,
    Scope,
    Send,
    not_found,
    too_large,
    until_gone,
)
from gateway.server.bodies import SCOPE_KEY as BODY_KEY
from gateway.server.bodies import read_body
from gateway.server.keepalive import SSE_HEADERS
from gateway.server.principal import ADMIT_KEY, CALLER_KEY, SCOPE_KEY, Principal
from gateway.services import Services
from gateway.wire.chat import Caller, encode

T = TypeVar("T")

PART = 256 * 1024
"""Bytes of a file that are in memory at a time."""
SLOW_SECONDS = 60.0
"""How long a client of an event stream may leave a frame unread before its connection is closed."""


class Request(requests.Request):
    """Starlette's request with the gateway's services, the caller, and a body of at most `server.max_body_bytes`."""

    def __init__(self, scope: Scope, receive: Receive, services: Services) -> None:
        super().__init__(scope, receive)
        self.services = services

    @property
    def gateway(self) -> Gateway:
        return self.services.gateway

    @property
    def principal(self) -> Principal:
        principal: Principal = self.scope[SCOPE_KEY]
        return principal

    @property
    def caller(self) -> Caller:
        """The principal's key and program, for usage accounting and limits."""
        caller: Caller = self.scope[CALLER_KEY]
        return caller

    async def body(self) -> bytes:
        """Raises what `read_body` raises."""
        if not hasattr(self, "_body"):
            self._body = await read_body(self.scope, self.receive)
        return self._body

    async def short_body(self, maximum: int, by: str) -> bytes:
        """For an endpoint whose fields are all short: decoding it takes no time that others notice.

        by: what sets the limit. Raises what `read_body` raises, and ProviderInvalidRequest (413) above `maximum` bytes.
        """
        body = await self.body()
        if len(body) > maximum:
            raise too_large(maximum, by)
        return body

    async def translated(self, work: Callable[[bytes], T]) -> T:
        """What `work` makes of the body, beside the event loop if it is large; then the body is no longer kept.

        Raises what `read_body` and `work` raise.
        """
        body = await self.body()
        size = len(body)
        asked = size, work, body
        del body
        found = await in_thread_if_large(*asked)
        if size > LARGE:
            self._body = b""
            self.scope[BODY_KEY].forget()
        return found

    def number(self, name: str, default: int, maximum: int, least: int = 0) -> int:
        """A query parameter. Raises ProviderInvalidRequest unless it is a number from `least` to `maximum`."""
        text = self.query_params.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit()) or not least <= (number := int(text[:12])) <= maximum:
            raise ProviderInvalidRequest(f"{name}: must be a whole number from {least} to {maximum}", param=name)
        return number

    def flag(self, name: str) -> bool:
        """A query parameter that is true or false. Raises ProviderInvalidRequest for anything else."""
        text = self.query_params.get(name)
        if text in (None, "false", "0"):
            return False
        if text in ("", "true", "1"):
            return True
        raise ProviderInvalidRequest(f"{name}: must be true or false", param=name)


Handler = Callable[[Request], Awaitable[ASGIApp]]
"""Answers one method of a path: returns the response to send, or raises GatewayError."""


def at_the_holder(handler: Handler) -> Handler:
    """In a cluster, one gateway does the work that is in the store, such as rooms and batches: it answers instead."""

    @functools.wraps(handler)
    async def anywhere(request: Request) -> ASGIApp:
        pool = request.gateway.pool
        return await (handler(request) if pool is None else pool.forward(handler, request))

    return anywhere


class JSON(Response):
    media_type = "application/json"

    def __init__(self, value: object, headers: Headers = (), status: int = 200) -> None:
        super().__init__(encode(value), status)
        self.raw_headers += headers


def download(file: BinaryIO, name: str, kind: str, headers: Mapping[str, str]) -> ASGIApp:
    """Sends a file, which it closes, as one to save under that name: no browser shows it as a page of the gateway."""

    def parts() -> Iterator[bytes]:
        with file:
            while part := file.read(PART):
                yield part

    told = {"content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}", **headers}
    guards = {"x-content-type-options": "nosniff", "content-security-policy": "sandbox", "cache-control": "no-store"}
    return StreamingResponse(parts(), media_type=kind, headers={**guards, **told})


class EventStream:
    """Sends server-sent events as they come, or the frames of another format, which its headers name.

    Closes the connection of a client that reads none for SLOW_SECONDS, and before it tells anything that came after
    the client's key was revoked.
    """

    def __init__(self, frames: AsyncIterator[bytes], headers: Headers = SSE_HEADERS) -> None:
        self._frames = frames
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(self._headers)})
        if scope["method"] != "HEAD":
            async for frame in self._frames:
                try:
                    await scope[ADMIT_KEY]()
                    async with asyncio.timeout(SLOW_SECONDS):
                        await send({"type": "http.response.body", "body": frame, "more_body": True})
                except (TimeoutError, GatewayError):
                    return  # the server closes the connection of an unfinished response
        await send({"type": "http.response.body", "body": b""})


class Endpoint:
    """The methods of one path.

    handlers: method → import string of a `Handler`, loaded with the method's first request.
    finishes: a handler runs to its end even if its client leaves; otherwise it is cancelled. uploads: a handler reads
    the body itself, to its end; the response that it returns does the work, and is cancelled.
    """

    def __init__(self, services: Services, handlers: Mapping[str, str], *, finishes: bool, uploads: bool) -> None:
        self._services = services
        self._handlers = handlers
        self._finishes = finishes
        self._uploads = uploads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        handler: Handler = import_from_string(self._handlers["GET" if method == "HEAD" else method])
        request = Request(scope, receive, self._services)
        if method not in ("GET", "HEAD") and not self._uploads:
            try:
                await request.body()
            except ClientGone:
                return
        if self._finishes or self._uploads:
            try:
                response = await handler(request)
            except ClientGone:
                return
            await until_gone(response(scope, receive, send), receive)
        else:
            await until_gone(_answer(handler, request, receive, send), receive)


async def _answer(handler: Handler, request: Request, receive: Receive, send: Send) -> None:
    response = await handler(request)
    await response(request.scope, receive, send)


class _Path(Route):
    """Starlette's route; another method raises, so that the error has the API's own format."""

    def __init__(self, path: str, endpoint: Endpoint, methods: list[str]) -> None:
        super().__init__(path, endpoint, methods=methods)
        self._allowed = methods

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.methods is not None
        if scope["method"] not in self.methods:
            raise MethodNotAllowed(scope["method"], scope["path"], self._allowed)
        await self.app(scope, receive, send)


def router(paths: Iterable[tuple[str, Endpoint, list[str]]]) -> Router:
    """Starlette's router over (path, endpoint, methods). Raises ProviderInvalidRequest (404, 405)."""
    routes = [_Path(path, endpoint, methods) for path, endpoint, methods in paths]
    return Router(routes, redirect_slashes=False, default=_not_found)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    raise not_found(scope["method"], scope["path"])

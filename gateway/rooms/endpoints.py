"""/llm/room and /api/user/secrets over HTTP: routes, the envelope, server-sent events."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias, TypeVar, get_args
from urllib.parse import parse_qs

import msgspec

from gateway.errors import GatewayError, ProviderAuthentication, ProviderInvalidRequest
from gateway.rooms.schemas import Interrupt, Release, Rent, Say, Secret, Update, Wake, encode
from gateway.rooms.service import Rooms
from gateway.rooms.states import STATES, State
from gateway.server.asgi import ClientGone, Message, Receive, Scope, Send, read_body, until_gone
from gateway.server.principal import SCOPE_KEY, Principal
from gateway.services import Services
from gateway.wire import body as wire

T = TypeVar("T")

SLOW_SECONDS = 60.0
"""A follower that takes nothing for so long is left."""

MAX_LIST, MAX_HISTORY = 1000, 10_000

JSON = (b"content-type", b"application/json")
EVENT_STREAM = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
RETRY = b"retry: 1000\n\n"
"""Milliseconds until a client that lost the stream asks again."""


log = logging.getLogger("ctxgate")


class Request:
    """One request, its body read on demand."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, max_body: int) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.principal: Principal = scope[SCOPE_KEY]
        self.receive, self.send = receive, send
        self._scope = scope
        self._query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        self._max_body = max_body

    def header(self, name: bytes) -> str | None:
        return next((value.decode("latin-1") for key, value in self._scope["headers"] if key == name), None)

    def word(self, name: str) -> str | None:
        return self._query[name][-1] if name in self._query else None

    def number(self, name: str, default: int, most: int, least: int = 0) -> int:
        """Raises ProviderInvalidRequest."""
        text = self.word(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit()) or not least <= (number := int(text[:12])) <= most:
            raise ProviderInvalidRequest(f"{name}: must be a number from {least} to {most}", param=name)
        return number

    def flag(self, name: str) -> bool:
        """Raises ProviderInvalidRequest."""
        text = self.word(name)
        if text in (None, "false", "0"):
            return False
        if text in ("", "true", "1"):
            return True
        raise ProviderInvalidRequest(f"{name}: must be true or false", param=name)

    async def body(self, kind: type[T]) -> T:
        """Nothing means `{}`. Raises ProviderInvalidRequest, which names the field at fault."""
        body = await read_body(self._scope, self.receive, self._max_body)
        return wire.read(msgspec.json.Decoder(kind), body or b"{}")


Handler: TypeAlias = Callable[[Rooms, Request, str], Awaitable[tuple[int, Any] | None]]
"""Rooms, the request, the id in its path → status and data; None where it has answered by itself."""


async def visible(rooms: Rooms, request: Request, _: str) -> tuple[int, Any]:
    status = request.word("status")
    if status is not None and status not in STATES:
        raise ProviderInvalidRequest(f"status: must be one of {', '.join(get_args(State))}", param="status")
    limit, offset = request.number("limit", 100, MAX_LIST, 1), request.number("offset", 0, 2**31)
    return 200, await rooms.visible(request.principal.tenant, status, limit, offset)


async def rent(rooms: Rooms, request: Request, _: str) -> tuple[int, Any]:
    asked = await request.body(Rent)
    return 201, await rooms.rent(request.principal.tenant, request.principal.user, asked)


async def get(rooms: Rooms, request: Request, room: str) -> tuple[int, Any]:
    return 200, await rooms.get(request.principal.tenant, room)


async def update(rooms: Rooms, request: Request, room: str) -> tuple[int, Any]:
    return 200, await rooms.update(request.principal.tenant, room, await request.body(Update))


async def say(rooms: Rooms, request: Request, room: str) -> tuple[int, Any]:
    asked = await request.body(Say)
    return 202, await rooms.say(request.principal.tenant, request.principal.user, room, asked)


async def wake(rooms: Rooms, request: Request, room: str) -> tuple[int, Any]:
    await request.body(Wake)
    return 200, await rooms.wake(request.principal.tenant, room)


async def interrupt(rooms: Rooms, request: Request, room: str) -> tuple[int, Any]:
    asked = await request.body(Interrupt)
    return 200, await rooms.interrupt(request.principal.tenant, room, asked.reason)


async def release(rooms: Rooms, request: Request, room: str) -> tuple[int, Any]:
    return 200, await rooms.release(request.principal.tenant, room, await request.body(Release))


async def history(rooms: Rooms, request: Request, room: str) -> tuple[int, Any]:
    events, messages = request.number("after_event", 0, 2**31), request.number("after_message", 0, 2**31)
    limit = request.number("limit", 1000, MAX_HISTORY, 1)
    return 200, await rooms.history(request.principal.tenant, room, events, messages, limit)


async def events(rooms: Rooms, request: Request, room: str) -> None:
    """Last-Event-ID, which a client sends that was cut off, counts more than `after` of the address it asked first."""
    after = request.number("after", 0, 2**31)
    last = request.header(b"last-event-id")
    if last is not None and last.isascii() and last.isdigit():
        after = int(last[:12])
    follow = request.flag("follow")
    await rooms.get(request.principal.tenant, room)
    stream = _stream(rooms.follow(request.principal.tenant, room, after, tail=follow), request.send)
    with suppress(TimeoutError):  # the server closes a connection whose answer is not complete
        await until_gone(stream, request.receive)


async def _stream(frames: AsyncIterator[bytes], send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": list(EVENT_STREAM)})
    await _send(send, RETRY)
    async for data in frames:
        await _send(send, data)
    await send({"type": "http.response.body", "body": b""})


async def _send(send: Send, data: bytes) -> None:
    async with asyncio.timeout(SLOW_SECONDS):
        await send({"type": "http.response.body", "body": data, "more_body": True})


async def add_secret(rooms: Rooms, request: Request, _: str) -> tuple[int, Any]:
    secret = await request.body(Secret)
    await rooms.open()
    return 201, await rooms.vault.add(request.principal.tenant, request.principal.user, secret)


async def secrets(rooms: Rooms, request: Request, _: str) -> tuple[int, Any]:
    await rooms.open()
    return 200, await rooms.vault.shown(request.principal.tenant, request.principal.user)


async def delete_secret(rooms: Rooms, request: Request, id: str) -> tuple[int, Any]:
    await rooms.open()
    await rooms.vault.delete(request.principal.tenant, request.principal.user, id)
    return 200, None


_ID = r"([^/]{1,64})"
ROUTES: tuple[tuple[str, dict[str, Handler]], ...] = (
    ("/llm/room", {"GET": visible, "POST": rent}),
    ("/llm/room/{id}", {"GET": get, "PATCH": update}),
    ("/llm/room/{id}/messages", {"POST": say}),
    ("/llm/room/{id}/wake", {"POST": wake}),
    ("/llm/room/{id}/events", {"GET": events}),
    ("/llm/room/{id}/history", {"GET": history}),
    ("/llm/room/{id}/interrupt", {"POST": interrupt}),
    ("/llm/room/{id}/release", {"POST": release}),
    ("/api/user/secrets", {"GET": secrets, "POST": add_secret}),
    ("/api/user/secrets/{id}", {"DELETE": delete_secret}),
)
_PATTERNS = [(re.compile(re.escape(path).replace(r"\{id\}", _ID) + "/?"), handlers) for path, handlers in ROUTES]


class RoomsFace:
    """The ASGI application of both prefixes."""

    def __init__(self, services: Services) -> None:
        self._rooms = services.shared(Rooms)
        self._gateway = services.gateway
        self._max_body = services.gateway.config.server.max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send, self._max_body)
        handler, id = _route(request)
        _check_origin(request, self._gateway.config.server.cors_origins)
        try:
            done = await handler(self._rooms, request, id)
        except ClientGone:
            return
        if done is not None:
            status, data = done
            envelope = {"success": True, "data": data, "error": None, "code": None, "message": None}
            await _whole(send, status, encode(envelope))

    def error_body(self, error: GatewayError) -> bytes:
        """`error` and `message` are the same words: clients read either."""
        words = str(error)
        return encode({"success": False, "data": None, "error": words, "code": error.code, "message": words})

    async def aclose(self) -> None:
        await self._rooms.aclose()


def build(services: Services) -> RoomsFace:
    return RoomsFace(services)


@asynccontextmanager
async def resume(services: Services) -> AsyncIterator[None]:
    """Takes up the rooms that an earlier process left, beside the start."""
    rooms = services.shared(Rooms)
    rooms.spawn(_take_up(rooms), "take up the rooms")
    try:
        yield
    finally:
        await rooms.aclose()


async def _take_up(rooms: Rooms) -> None:
    try:
        await rooms.open()
    except GatewayError as error:
        log.warning("rooms can't be taken up yet: %s", error)


def _route(request: Request) -> tuple[Handler, str]:
    """Raises ProviderInvalidRequest (404, 405)."""
    for pattern, handlers in _PATTERNS:
        if match := pattern.fullmatch(request.path):
            if request.method in handlers:
                return handlers[request.method], match[1] if match.groups() else ""
            message = f"{request.method} {request.path}: use {' or '.join(handlers)}"
            raise ProviderInvalidRequest(message, code="method_not_allowed", status=405)
    raise ProviderInvalidRequest(f"{request.method} {request.path}: no such endpoint", code="not_found", status=404)


def _check_origin(request: Request, allowed: Sequence[str]) -> None:
    """A browser sends some writes of any page without asking first, and a room's tools act. Raises
    ProviderAuthentication (403)."""
    origin = request.header(b"origin")
    if request.method != "GET" and origin is not None and not {"*", origin} & set(allowed):
        message = "a web page may change rooms only if its origin is one of server.cors_origins"
        raise ProviderAuthentication(message, code="origin_not_allowed", status=403)


async def _whole(send: Send, status: int, body: bytes) -> None:
    head: Message = {"type": "http.response.start", "status": status, "headers": [JSON, _length(body)]}
    await send(head)
    await send({"type": "http.response.body", "body": body})


def _length(body: bytes) -> tuple[bytes, bytes]:
    return b"content-length", b"%d" % len(body)

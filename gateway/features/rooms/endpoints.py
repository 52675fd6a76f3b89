"""/llm/room and /api/user/secrets over HTTP: the envelope, and events as server-sent events."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, TypeVar

import msgspec

from gateway.core.in_thread import in_thread
from gateway.errors import GatewayError, ProviderInvalidRequest
from gateway.features.rooms.schemas import Interrupt, Release, Rent, Say, Secret, Update, Wake, encode
from gateway.features.rooms.service import Rooms
from gateway.features.rooms.states import OPEN, STATES
from gateway.server.asgi import ASGIApp
from gateway.server.http import JSON, EventStream, Handler, Request, at_the_holder
from gateway.services import Services
from gateway.wire import body as wire

T = TypeVar("T")

MAX_LIST, MAX_HISTORY = 1000, 10_000
MAX_SEQ = 2**31 - 1
"""The largest number that an event or a message can have in the store."""

RETRY = b"retry: 1000\n\n"
"""Milliseconds until a client that lost the stream reconnects."""

TAKE_OVER_SECONDS = 1.0

log = logging.getLogger("ctxgate")

Verb: TypeAlias = Callable[[Rooms, Request], Awaitable[tuple[int, Any]]]
"""Status and data of an answer."""


def enveloped(verb: Verb) -> Handler:
    """Puts the data of an answer into the envelope that all answers share."""

    @functools.wraps(verb)
    async def handler(request: Request) -> ASGIApp:
        status, data = await verb(request.services.shared(Rooms), request)
        return _answer(status, data)

    return at_the_holder(handler)


def _answer(status: int, data: object, **more: bool) -> JSON:
    return JSON({"success": True, "data": data, **more, "error": None, "code": None, "message": None}, status=status)


def error_object(error: GatewayError) -> dict[str, Any]:
    """`error` and `message` are the same text: clients read either."""
    text = str(error)
    return {"success": False, "data": None, "error": text, "code": error.code, "message": text}


async def read(request: Request, kind: type[T], *, nulls: bool = False) -> T:
    """The body; an empty one is `{}`. nulls: null is a value. Raises ProviderInvalidRequest, which names the field at
    fault."""
    decoder = msgspec.json.Decoder(kind)
    return await request.translated(lambda body: wire.read(decoder, body or b"{}", nulls=nulls))


def _id(request: Request) -> str:
    id: str = request.path_params["id"]
    return id


@at_the_holder
async def visible(request: Request) -> ASGIApp:
    """Beside the envelope's fields: whether there are `more`."""
    status = request.query_params.get("status")
    if status not in (None, "open", *STATES):
        raise ProviderInvalidRequest(f"status: must be open or one of {', '.join(STATES)}", param="status")
    states = OPEN if status == "open" else [state for state in STATES if state == status] or None
    limit, offset = request.number("limit", 100, MAX_LIST, 1), request.number("offset", 0, 2**31)
    rooms = request.services.shared(Rooms)
    found, more = await rooms.visible(request.principal.tenant, states, limit, offset)
    return _answer(200, await in_thread(_encoded, found), more=more)


@enveloped
async def rent(rooms: Rooms, request: Request) -> tuple[int, Any]:
    wanted = await read(request, Rent)
    return 201, await rooms.rent(request.principal.tenant, request.principal.user, wanted)


@enveloped
async def get(rooms: Rooms, request: Request) -> tuple[int, Any]:
    return 200, await rooms.get(request.principal.tenant, _id(request))


@enveloped
async def update(rooms: Rooms, request: Request) -> tuple[int, Any]:
    changes = await read(request, Update, nulls=True)
    return 200, await rooms.update(request.principal.tenant, _id(request), changes)


@enveloped
async def say(rooms: Rooms, request: Request) -> tuple[int, Any]:
    message = await read(request, Say)
    return 202, await rooms.say(request.principal.tenant, request.principal.user, _id(request), message)


@enveloped
async def wake(rooms: Rooms, request: Request) -> tuple[int, Any]:
    retry = (await read(request, Wake)).retry
    return 200, await rooms.wake(request.principal.tenant, _id(request), retry=retry)


@enveloped
async def interrupt(rooms: Rooms, request: Request) -> tuple[int, Any]:
    reason = (await read(request, Interrupt)).reason
    return 200, await rooms.interrupt(request.principal.tenant, _id(request), reason)


@enveloped
async def release(rooms: Rooms, request: Request) -> tuple[int, Any]:
    return 200, await rooms.release(request.principal.tenant, _id(request), await read(request, Release))


@enveloped
async def history(rooms: Rooms, request: Request) -> tuple[int, Any]:
    events, messages = request.number("after_event", 0, MAX_SEQ), request.number("after_message", 0, MAX_SEQ)
    limit = request.number("limit", 1000, MAX_HISTORY, 1)
    found = await rooms.history(request.principal.tenant, _id(request), events, messages, limit)
    return 200, await in_thread(_encoded, found)


def _encoded(value: object) -> msgspec.Raw:
    """Beside the event loop: a page may have megabytes."""
    return msgspec.Raw(encode(value))


@at_the_holder
async def events(request: Request) -> ASGIApp:
    """A client that reconnects sends Last-Event-ID, which then replaces the `after` of its first request."""
    rooms, room, tenant = request.services.shared(Rooms), _id(request), request.principal.tenant
    after = request.number("after", 0, MAX_SEQ)
    last = request.headers.get("last-event-id")
    if last is not None and last.isascii() and last.isdigit():
        after = min(int(last[:12]), MAX_SEQ)
    follow = request.flag("follow")
    await rooms.get(tenant, room)

    async def frames() -> AsyncIterator[bytes]:
        yield RETRY
        async for frame in rooms.follow(tenant, room, after, tail=follow):
            yield frame

    return EventStream(frames())


@enveloped
async def add_secret(rooms: Rooms, request: Request) -> tuple[int, Any]:
    secret = await read(request, Secret)
    await rooms.open()
    return 201, await rooms.vault.add(request.principal.tenant, request.principal.user, secret)


@enveloped
async def secrets(rooms: Rooms, request: Request) -> tuple[int, Any]:
    await rooms.open()
    return 200, await rooms.vault.shown(request.principal.tenant, request.principal.user)


@enveloped
async def delete_secret(rooms: Rooms, request: Request) -> tuple[int, Any]:
    await rooms.open()
    await rooms.vault.delete(request.principal.tenant, request.principal.user, _id(request))
    return 200, None


@asynccontextmanager
async def resume(services: Services) -> AsyncIterator[None]:
    """Resumes the rooms of an earlier process, without delaying the start."""
    rooms = services.shared(Rooms)
    rooms.spawn(_resume(rooms, services), "resume the rooms")
    try:
        yield
    finally:
        await rooms.aclose()


async def _resume(rooms: Rooms, services: Services) -> None:
    while True:
        try:
            await rooms.open()
        except GatewayError as error:
            if services.gateway.pool is None:
                log.warning("can't resume the rooms yet: %s", error)
                return
        # In a cluster, another gateway resumes the rooms of one that died.
        if services.gateway.pool is None:
            return
        await asyncio.sleep(TAKE_OVER_SECONDS)

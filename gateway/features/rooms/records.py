"""A tenant's models and records over HTTP: those of the tools `describe.*`, `data.*`, `find.*` and `aggregate.*`."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.errors import ProviderInvalidRequest
from gateway.features.agents.settings import Rooms as Settings
from gateway.features.agents.tools.base import ToolError
from gateway.features.rooms.endpoints import enveloped
from gateway.features.rooms.schemas import Defined
from gateway.features.rooms.service import Rooms
from gateway.server.http import Handler, Request
from gateway.wire import body as wire

if TYPE_CHECKING:
    from gateway.features.agents.tools.records import Model, Page, Records

STATUS = {"conflict": 409, "quota_exceeded": 429, "too_large": 413, "query_timeout": 408}
"""Code → HTTP status: 404 for what isn't found, of all others 400."""

MAX_BYTES = 512 * 1024
"""Of a body: twice the longest schema."""
PATTERNS = ("pattern", "patternProperties")

Verb = Callable[["Records", Request], Awaitable[tuple[int, Any]]]


def _verb(work: Verb) -> Handler:
    """A handler; a tool's error becomes the API's, with the same code."""

    @enveloped
    @functools.wraps(work)
    async def handler(rooms: Rooms, request: Request) -> tuple[int, Any]:
        try:
            return await work(await rooms.records(request.principal.tenant), request)
        except ToolError as error:
            status = 404 if error.code.endswith("_not_found") else STATUS.get(error.code, 400)
            raise ProviderInvalidRequest(error.message, code=error.code, status=status) from None

    return handler


async def _body(request: Request) -> bytes:
    """Raises ProviderInvalidRequest (413) if it is longer than anything that is accepted, before it is decoded: an
    array of empty arrays takes twenty times its length in memory."""
    maximum = max(MAX_BYTES, 4 * request.gateway.config.section(Settings).tools.record_max_bytes)
    return await request.short_body(maximum, "the limit of schemas, records and queries") or b"{}"


async def _object(request: Request) -> dict[str, Any]:
    found: dict[str, Any] = wire.read(msgspec.json.Decoder(dict[str, Any]), await _body(request), nulls=True)
    return found


def _model(request: Request) -> str:
    return str(request.path_params["model"])


def _described(model: Model) -> dict[str, Any]:
    return {"model": model.name, "description": model.description, "schema": model.schema}


def _page(page: Page, offset: int) -> dict[str, Any]:
    return {"records": page.records, "next_offset": offset + len(page.records) if page.more else None}


@_verb
async def models(records: Records, request: Request) -> tuple[int, Any]:
    return 200, [_described(model) for model in await records.models()]


@_verb
async def describe(records: Records, request: Request) -> tuple[int, Any]:
    return 200, _described(await records.model(_model(request)))


@_verb
async def define(records: Records, request: Request) -> tuple[int, Any]:
    """Refuses patterns, which run on text that language models write: one can take forever."""
    wanted = wire.read(msgspec.json.Decoder(Defined), await _body(request))
    if found := next(_patterns(wanted.schema), None):
        message = f"schema: {found} can only be set with `ctxgate records define`, on the gateway's own machine"
        raise ProviderInvalidRequest(message, code="invalid_model", param="schema")
    return 200, _described(await records.define(_model(request), wanted.schema, wanted.description))


def _patterns(value: Any) -> Iterator[str]:
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield from (key for key in PATTERNS if key in value)
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


@_verb
async def listed(records: Records, request: Request) -> tuple[int, Any]:
    trashed = request.query_params.get("trashed", "exclude")
    offset = request.number("offset", 0, 1_000_000)
    query = {"limit": request.number("limit", 50, 500, 1), "offset": offset, "trashed": trashed}
    return 200, _page(await records.find(_model(request), query), offset)


@_verb
async def create(records: Records, request: Request) -> tuple[int, Any]:
    return 201, await records.create(_model(request), await _object(request))


@_verb
async def get(records: Records, request: Request) -> tuple[int, Any]:
    return 200, await records.get(_model(request), request.path_params["id"])


@_verb
async def update(records: Records, request: Request) -> tuple[int, Any]:
    return 200, await records.update(_model(request), request.path_params["id"], await _object(request))


@_verb
async def delete(records: Records, request: Request) -> tuple[int, Any]:
    await records.delete(_model(request), request.path_params["id"])
    return 200, None


@_verb
async def find(records: Records, request: Request) -> tuple[int, Any]:
    query = await _object(request)
    offset = query.get("offset", 0)
    return 200, _page(await records.find(_model(request), query), offset if isinstance(offset, int) else 0)


@_verb
async def aggregate(records: Records, request: Request) -> tuple[int, Any]:
    groups, more = await records.aggregate(_model(request), await _object(request))
    return 200, {"groups": groups, "truncated": more}

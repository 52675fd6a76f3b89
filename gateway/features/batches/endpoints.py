"""`/v1/files` and `/v1/batches`, as OpenAI has them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.responses import StreamingResponse

from gateway.errors import ProviderInvalidRequest
from gateway.features.batches.batch_store import BatchStore
from gateway.features.batches.file_store import FileStore
from gateway.features.batches.form import File, fields
from gateway.features.batches.objects import CreateBatch, check_expiry, file_object
from gateway.features.batches.runner import Batches
from gateway.server.asgi import ASGIApp
from gateway.server.http import JSON, Request, at_the_holder
from gateway.wire.stored import page

LARGEST_FILES, LARGEST_BATCHES, BATCHES = 10_000, 100, 20
"""The most objects on one page, and the number if there is no `limit`."""


async def upload(request: Request) -> ASGIApp:
    form = await asyncio.to_thread(fields, request.headers.get("content-type", ""), await request.body())
    purpose, file = form.get("purpose"), form.get("file")
    if purpose != "batch":
        raise ProviderInvalidRequest("purpose: must be batch", param="purpose")
    if not isinstance(file, File):
        raise ProviderInvalidRequest("file: a file is required", param="file")
    seconds = _expiry(form)
    files = await _files(request)
    return JSON(file_object(await files.add(file.parts, file.name or "file", seconds, request.principal)))


async def files(request: Request) -> ASGIApp:
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise ProviderInvalidRequest("order: must be asc or desc", param="order")
    limit = request.number("limit", LARGEST_FILES, LARGEST_FILES, 1)
    query = request.query_params
    store = await _files(request)
    found = await store.page(request.principal, query.get("purpose"), query.get("after"), limit + 1, order)
    return JSON(page([file_object(row) for row in found], limit))


async def file(request: Request) -> ASGIApp:
    return JSON(file_object(await (await _files(request)).get(request.path_params["id"], request.principal)))


async def content(request: Request) -> ASGIApp:
    store = await _files(request)
    row = await store.get(request.path_params["id"], request.principal)
    headers = {"content-length": str(row.bytes), "x-content-type-options": "nosniff"}
    return StreamingResponse(store.parts(row.id), headers=headers, media_type="application/octet-stream")


async def delete(request: Request) -> ASGIApp:
    id = request.path_params["id"]
    await (await _files(request)).delete(id, request.principal)
    return JSON({"id": id, "object": "file", "deleted": True})


@at_the_holder
async def create(request: Request) -> ASGIApp:
    wanted = await request.translated(CreateBatch.parse)
    return JSON((await request.services.shared(Batches).create(wanted, request.principal)).object)


async def batches(request: Request) -> ASGIApp:
    limit = request.number("limit", BATCHES, LARGEST_BATCHES, 1)
    found = await (await _batches(request)).page(request.principal, request.query_params.get("after"), limit + 1)
    return JSON(page([batch.object for batch in found], limit))


async def batch(request: Request) -> ASGIApp:
    return JSON((await (await _batches(request)).get(request.path_params["id"], request.principal)).object)


@at_the_holder
async def cancel(request: Request) -> ASGIApp:
    id = request.path_params["id"]
    return JSON((await request.services.shared(Batches).cancel(id, request.principal)).object)


def _expiry(form: Mapping[str, str | File]) -> int | None:
    """Seconds until the file expires, if the request sets them. Raises ProviderInvalidRequest."""
    anchor, seconds = form.get("expires_after[anchor]"), form.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at" or not isinstance(seconds, str) or not (seconds.isascii() and seconds.isdigit()):
        message = "expires_after: needs the anchor created_at and a whole number of seconds"
        raise ProviderInvalidRequest(message, param="expires_after")
    return check_expiry(int(seconds[:12]), "expires_after")


async def _files(request: Request) -> FileStore:
    return FileStore(await request.services.store(), request.gateway.config)


async def _batches(request: Request) -> BatchStore:
    return BatchStore(await request.services.store())

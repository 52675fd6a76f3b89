"""`/v1/conversations` and their items."""

from __future__ import annotations

from gateway.features.responses.references import resolved
from gateway.features.responses.stored import conversations, paging
from gateway.features.responses.wire.conversations import AddItems, CreateConversation, UpdateConversation, shown
from gateway.server.asgi import ASGIApp
from gateway.server.http import JSON, Request
from gateway.wire.stored import listed


async def create(request: Request) -> ASGIApp:
    wanted = await request.translated(CreateConversation.parse)
    store = await conversations(request)
    items = await resolved(request, wanted.items or [], field="items")
    return JSON(await store.create(items, wanted.metadata or {}, request.principal))


async def retrieve(request: Request) -> ASGIApp:
    return JSON(await (await conversations(request)).get(_id(request), request.principal))


async def update(request: Request) -> ASGIApp:
    wanted = await request.translated(UpdateConversation.parse)
    return JSON(await (await conversations(request)).update(_id(request), wanted.metadata or {}, request.principal))


async def delete(request: Request) -> ASGIApp:
    await (await conversations(request)).delete(_id(request), request.principal)
    return JSON({"id": _id(request), "object": "conversation.deleted", "deleted": True})


async def add_items(request: Request) -> ASGIApp:
    wanted = await request.translated(AddItems.parse)
    store = await conversations(request)
    items = await resolved(request, wanted.items, field="items")
    added = await store.add(_id(request), items, request.principal)
    return JSON(listed([shown(item) for item in added], more=False))


async def items(request: Request) -> ASGIApp:
    found = await (await conversations(request)).page(_id(request), request.principal, paging(request))
    return JSON(listed([shown(item) for item in found.items], more=found.more))


async def item(request: Request) -> ASGIApp:
    store = await conversations(request)
    return JSON(shown(await store.item(_id(request), request.path_params["item"], request.principal)))


async def delete_item(request: Request) -> ASGIApp:
    return JSON(
        await (await conversations(request)).remove(_id(request), request.path_params["item"], request.principal)
    )


def _id(request: Request) -> str:
    id: str = request.path_params["id"]
    return id

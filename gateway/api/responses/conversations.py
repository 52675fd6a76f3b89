"""`/v1/conversations` and their items."""

from __future__ import annotations

from gateway.api.responses.conversation_store import missing_item
from gateway.api.responses.stored import conversations, paged
from gateway.server.asgi import ASGIApp
from gateway.server.http import JSON, Request
from gateway.wire.responses.conversations import AddItems, CreateConversation, UpdateConversation, shown
from gateway.wire.stored import page


async def create(request: Request) -> ASGIApp:
    wanted = CreateConversation.parse(await request.body())
    store = await conversations(request)
    return JSON(await store.create(wanted.items or [], wanted.metadata or {}, request.principal))


async def retrieve(request: Request) -> ASGIApp:
    return JSON(await (await conversations(request)).get(_id(request), request.principal))


async def update(request: Request) -> ASGIApp:
    wanted = UpdateConversation.parse(await request.body())
    return JSON(await (await conversations(request)).update(_id(request), wanted.metadata or {}, request.principal))


async def delete(request: Request) -> ASGIApp:
    await (await conversations(request)).delete(_id(request), request.principal)
    return JSON({"id": _id(request), "object": "conversation.deleted", "deleted": True})


async def add_items(request: Request) -> ASGIApp:
    wanted = AddItems.parse(await request.body())
    items = await (await conversations(request)).add(_id(request), wanted.items, request.principal)
    return JSON(page([shown(item) for item in items], len(items)))


async def items(request: Request) -> ASGIApp:
    found = await (await conversations(request)).items(_id(request), request.principal)
    return JSON(paged(request, [shown(item) for item in found]))


async def item(request: Request) -> ASGIApp:
    id = request.path_params["item"]
    for each in await (await conversations(request)).items(_id(request), request.principal):
        if each.get("id") == id:
            return JSON(shown(each))
    raise missing_item(_id(request), id)


async def delete_item(request: Request) -> ASGIApp:
    return JSON(
        await (await conversations(request)).remove(_id(request), request.path_params["item"], request.principal)
    )


def _id(request: Request) -> str:
    id: str = request.path_params["id"]
    return id

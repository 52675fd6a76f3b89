"""Rooms, messages and events as models of describe, find, aggregate and data: to read, and only of one's own tenant."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from gateway.features.agents.tools.records import Records, View
from gateway.features.rooms.views import VIEWS as VIEW_OF
from gateway.services import store_url
from gateway.store import Store
from tests.rooms.running import House, house, speaks
from tests.store.postgresql import start

VIEWS = ("room_events", "room_messages", "rooms")


async def of(rooms: House, model: str, **query: object) -> list[dict[str, object]]:
    found = await rooms.call("POST", f"/llm/find/{model}", 200, query)
    return list(found["records"])


async def turn(rooms: House, room: str, content: str) -> None:
    await rooms.say(room, content)
    await rooms.until(room, "room:idle")


@asynccontextmanager
async def records(rooms: House, tenant: str, views: Mapping[str, View] = VIEW_OF) -> AsyncIterator[Records]:
    """Those of the same store."""
    store = await Store.open(store_url(rooms.config))
    try:
        yield Records(store, tenant, maximum=10, longest=1000, views=views)
    finally:
        await store.aclose()


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_what_rooms_do_is_found(database: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        store = stack.enter_context(start()).database() if database == "postgresql" else None
        async with house(tmp_path, speaks("Fine."), store=store) as rooms:
            described = await rooms.call("GET", "/llm/describe", 200)
            assert [model["model"] for model in described] == [*VIEWS]
            assert all("Read-only" in model["description"] for model in described)
            first = await rooms.rent(metadata={"topic": "tea"}, purpose="To talk.")
            second = await rooms.rent(metadata={"topic": "coffee", "a\0": "\0"}, purpose="To \0 rest.")
            nul = "\ufffd" if store is not None else "\0"
            await turn(rooms, first, "What is tea? \0")
            room = await rooms.get(first)

            # Rooms
            (found,) = await of(rooms, "rooms", where={"metadata.topic": "tea"})
            assert {key: found[key] for key in ("id", "status", "purpose", "metadata", "actors", "rented_at")} == {
                key: room[key] for key in ("id", "status", "purpose", "metadata", "actors", "rented_at")
            }
            assert (found["created_at"], found["updated_at"]) == (room["rented_at"], room["updated_at"])
            assert [one["id"] for one in await of(rooms, "rooms")] == [first, second]
            (rest,) = await of(rooms, "rooms", where={"metadata.topic": "coffee"})
            assert rest["metadata"] == {"topic": "coffee", f"a{nul}": nul}
            assert [one["id"] for one in await of(rooms, "rooms", order=["metadata.topic"])] == [second, first]
            assert (await rooms.call("GET", f"/llm/data/rooms/{second}", 200))["status"] == "rented"

            # Messages and events: those of the history
            history = await rooms.call("GET", f"/llm/room/{first}/history", 200)
            messages = await of(rooms, "room_messages", where={"room_id": first})
            assert [(one["id"], one["content"], one["status"], one["message_seq"]) for one in messages] == [
                (one["id"], one["content"].replace("\0", nul), one["status"], one["seq"]) for one in history["messages"]
            ]
            about = await of(rooms, "room_messages", where={"content": {"$like": "%tea%"}}, select=["kind"])
            assert [one["kind"] for one in about] == ["task"]
            events = await of(rooms, "room_events", where={"room_id": first}, limit=500)
            assert [(one["id"], one["event_type"], one["payload"], one["event_seq"]) for one in events] == [
                (one["id"], one["event_type"], one["payload"], one["seq"]) for one in history["events"]
            ]
            assert (await rooms.call("GET", f"/llm/data/room_events/{events[0]['id']}", 200)) == events[0]
            page = await rooms.call("GET", "/llm/data/room_events?limit=2&offset=1", 200)
            assert (len(page["records"]), page["next_offset"]) == (2, 3)
            groups = {"group_by": ["room_id"], "aggregate": {"said": {"$count": "*"}, "last": {"$max": "message_seq"}}}
            counted = await rooms.call("POST", "/llm/aggregate/room_messages", 200, groups)
            assert counted["groups"] == [{"room_id": first, "said": 2, "last": 2}]

            # They can only be read.
            body = {"name": "x"}
            for method, path in (
                *(("POST", f"/llm/data/{model}") for model in VIEWS),
                ("PATCH", f"/llm/data/rooms/{first}"),
                ("DELETE", f"/llm/data/rooms/{first}"),
                ("PUT", "/llm/describe/rooms"),
            ):
                given = {"schema": {"type": "object"}} if method == "PUT" else body
                refused = await rooms.call(method, path, 400, None if method == "DELETE" else given)
                assert refused["code"] == "read_only", (method, path)
            assert (await rooms.get(first))["status"] == room["status"]


async def test_another_tenants_are_not_found(tmp_path: Path) -> None:
    async with house(tmp_path, speaks("Fine.")) as rooms:
        await turn(rooms, await rooms.rent(), "Hi")
        async with records(rooms, "other") as others:
            for model in VIEWS:
                assert (await others.find(model, {})).records == []
                assert await of(rooms, model)


async def test_a_model_that_a_tenant_had_under_the_name_stays_its_own(tmp_path: Path) -> None:
    """Of the time before: it isn't hidden, and can be written."""
    async with house(tmp_path, speaks("Fine.")) as rooms:
        async with records(rooms, "local", views={}) as before:
            await before.define("rooms", {"type": "object"}, "Mine.")
        await rooms.call("POST", "/llm/data/rooms", 201, {"name": "kitchen"})
        assert [one["name"] for one in await of(rooms, "rooms")] == ["kitchen"]
        described = await rooms.call("GET", "/llm/describe/rooms", 200)
        assert described["description"] == "Mine."
        assert await of(rooms, "room_events") == []

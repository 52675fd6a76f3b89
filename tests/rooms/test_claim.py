"""The database ends the claim on the rooms, as a restart of PostgreSQL does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from tests.gateway.double import endless
from tests.rooms.running import house, speaks
from tests.store.postgresql import Server, end_claims, start


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with start() as server:
        yield server


def end(url: str) -> None:
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        assert end_claims(connection) == 1
    engine.dispose()


async def test_rooms_are_claimed_again_and_their_turns_resumed(tmp_path: Path, server: Server) -> None:
    store = server.database()
    async with house(tmp_path, endless, speaks("Hello."), store=store) as rooms:
        room = await rooms.rent()
        await rooms.say(room)
        began = await rooms.until(room, "agent:turn_start")
        await rooms.engine.asked()
        end(store)
        assert (await rooms.get(room))["status"] == "active"
        await rooms.until(room, "agent:output", began["seq"])
        types = await rooms.types(room)
        assert types.count("agent:turn_resumed") == 1
        assert types[-1] == "room:idle"


async def test_another_gateway_claims_the_rooms_meanwhile(tmp_path: Path, server: Server) -> None:
    store = server.database()
    async with (
        house(tmp_path / "a", endless, store=store, keep_alive=0.2) as first,
        house(tmp_path / "b", speaks("Hello."), store=store) as second,
    ):
        room = await first.rent()
        await first.say(room)
        seen: list[str] = []
        began = asyncio.Event()

        async def follow() -> None:
            async for event in first.follow(room):
                seen.append(event["event_type"])
                if event["event_type"] == "agent:turn_start":
                    began.set()

        following = asyncio.create_task(follow())
        await began.wait()
        end(store)
        await second.until(room, "agent:output")
        # Its turn ends, and so do the streams of its followers.
        await following
        assert "agent:output" not in seen
        await first.engine.count_open(0)
        refused = await first.call("GET", "/llm/room", 503)
        assert refused["code"] == "store_claimed"
        assert (await second.types(room)).count("agent:output") == 1

"""Rooms without HTTP, where a store that fails is forced."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, select, update

from gateway.config import Config, Model
from gateway.core import Gateway
from gateway.errors import ProviderInvalidRequest, ProviderUnavailable
from gateway.features.rooms.schemas import Actor, Rent, Say, ToolPolicy, TurnBounds, Update
from gateway.features.rooms.service import Rooms
from gateway.features.rooms.tables import ROOMS
from gateway.features.rooms.turns import Agent
from gateway.services import Services
from gateway.store import Store
from tests.gateway.double import Double, endless
from tests.rooms.running import speaks

LIMIT = 40
"""Seconds for any one test."""


@asynccontextmanager
async def rooms_of(state: Path, engine: Double) -> AsyncIterator[Rooms]:
    address = f"http://127.0.0.1:{engine.address.port}"
    config = Config(
        source=state / "config.yaml",
        active_model="m",
        models={"m": Model(name="m", runtime="openai", base_url=address)},
        state_dir=state,
    )
    async with Gateway(config) as gateway:
        services = Services(gateway)
        rooms = Rooms(services)
        try:
            yield rooms
        finally:
            await rooms.aclose()
            await services.aclose()


def rolls_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the next write fail at its commit."""
    write = store.write

    async def failing(work: Callable[[Connection], Any]) -> Any:
        monkeypatch.setattr(store, "write", write)

        def undone(connection: Connection) -> None:
            work(connection)
            raise ProviderUnavailable("a full disk")

        await write(undone)

    monkeypatch.setattr(store, "write", failing)


async def test_an_interrupt_that_is_rolled_back_has_no_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with asyncio.timeout(LIMIT), Double(endless).serve() as engine, rooms_of(tmp_path, engine) as rooms:
        room = await rooms.rent("local", "me", Rent())
        await rooms.say("local", "me", room.id, Say("Hi"))
        exchange = await engine.asked()
        rolls_back(rooms.store, monkeypatch)
        with pytest.raises(ProviderUnavailable, match="a full disk"):
            await rooms.interrupt("local", room.id, None)
        assert not exchange.gone.done()
        await rooms.interrupt("local", room.id, None)
        with pytest.raises(ProviderInvalidRequest, match="no turn is running"):
            await rooms.interrupt("local", room.id, None)
        await exchange.gone


async def test_rooms_that_never_opened_can_be_closed(tmp_path: Path) -> None:
    """Whoever asked first gave up before the store failed to open."""
    (tmp_path / "ctxgate.db").mkdir()
    async with asyncio.timeout(LIMIT), Double().serve() as engine, rooms_of(tmp_path, engine) as rooms:
        first = asyncio.create_task(rooms.open())
        await asyncio.sleep(0)
        (opening,) = [task for task in asyncio.all_tasks() if task.get_name() == "open the rooms"]
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await asyncio.wait({opening})
        assert isinstance(opening.exception(), ProviderUnavailable)
        await rooms.aclose()


async def test_a_room_whose_settings_are_no_longer_valid_hides_no_other(tmp_path: Path) -> None:
    """An earlier version stored what this one can't read: the rest of the room is kept."""
    rent = Rent(purpose="Mine.", agents=[Actor("a")], tool_policy=ToolPolicy("read"), bounds=TurnBounds(tool_calls=7))

    def spoil(connection: Connection) -> None:
        data = connection.execute(select(ROOMS.c.data).where(ROOMS.c.id == spoilt)).scalar_one()
        data["bounds"]["model_calls"] = 0
        values = {"data": data, "status": "idle"}  # at the start, it is put to sleep
        connection.execute(update(ROOMS).where(ROOMS.c.id == spoilt).values(values))

    async with asyncio.timeout(LIMIT), Double().serve() as engine:
        async with rooms_of(tmp_path, engine) as rooms:
            other, spoilt = [(await rooms.rent("local", "me", rent)).id for _ in range(2)]
            await rooms.store.write(spoil)
        async with rooms_of(tmp_path, engine) as rooms:
            shown = {room.id: room for room in (await rooms.visible("local", None, 10, 0))[0]}
    assert shown[other].bounds == rent.bounds
    found = shown[spoilt]
    assert (found.status, found.bounds) == ("sleeping", TurnBounds())
    assert (found.purpose, found.actors, found.tool_policy) == (rent.purpose, rent.agents, rent.tool_policy)


async def test_a_worker_outlives_a_failure_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message that was queued before it is answered, without anybody's doing."""
    async with asyncio.timeout(LIMIT), Double(speaks("Fine.")).serve() as engine, rooms_of(tmp_path, engine) as rooms:
        room = (await rooms.rent("local", "me", Rent())).id
        write, writes = rooms.store.write, itertools.count()

        async def failing(work: Callable[[Connection], Any]) -> Any:
            if 1 <= next(writes) <= 2:  # behind the message
                raise ProviderUnavailable("a full disk")
            return await write(work)

        monkeypatch.setattr(rooms.store, "write", failing)
        await rooms.say("local", "me", room, Say("Hi"))
        async with aclosing(rooms.follow("local", room, 0, tail=True)) as frames:  # type: ignore[type-var]
            async for frame in frames:
                if b"room:idle" in frame:
                    break
        messages = (await rooms.history("local", room, 0, 0, 10)).messages
        assert [message.text() for message in messages] == ["Hi", "Fine."]


async def test_an_update_asks_for_the_tools_where_their_servers_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the event loop: after a reload, the connection to a server that has changed is closed there."""
    here, threads = threading.get_ident(), []
    check = Agent.check_policy

    def noted(*given: Any, **more: Any) -> None:
        threads.append(threading.get_ident())
        check(*given, **more)

    monkeypatch.setattr(Agent, "check_policy", noted)
    async with asyncio.timeout(LIMIT), Double().serve() as engine, rooms_of(tmp_path, engine) as rooms:
        room = await rooms.rent("local", "me", Rent())
        await rooms.update("local", room.id, Update(tool_policy=ToolPolicy("read", ["tool.cat"])))
    assert set(threads) == {here}


async def test_an_update_knows_the_tools_of_a_room_in_a_folder(tmp_path: Path) -> None:
    async with asyncio.timeout(LIMIT), Double().serve() as engine, rooms_of(tmp_path, engine) as rooms:
        hosted = (await rooms.rent("local", "me", Rent(), folder=str(tmp_path))).id
        plain = (await rooms.rent("local", "me", Rent())).id
        for tool, knows, other in (("fs.read", hosted, plain), ("tool.cat", plain, hosted)):
            policy = ToolPolicy("read", [tool])
            assert (await rooms.update("local", knows, Update(tool_policy=policy))).tool_policy == policy
            with pytest.raises(ProviderInvalidRequest, match=f"{tool!r} names no tool"):
                await rooms.update("local", other, Update(tool_policy=policy))

"""The rooms of an agent, without its socket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Config, Model
from gateway.core import Gateway
from gateway.features.agents.settings import Rooms as Settings
from gateway.features.ctx.agents.rooms import AgentRooms, Sent
from gateway.features.ctx.control import BadControlFile
from gateway.features.ctx.errors import Busy
from gateway.features.ctx.events import Done
from gateway.features.ctx.objects import ObjectName, Triple
from gateway.features.ctx.settings import Ctx, CtxAgent
from gateway.features.ctx.stored import sessions
from gateway.features.ctx.sync import sync
from gateway.features.rooms.expiry import prune
from gateway.features.rooms.schemas import Rent
from gateway.features.rooms.service import Rooms
from gateway.services import Services
from tests.patience import PATIENCE
from tests.support.rooms import add_released
from tests.support.state import DAY

OWNER = 1000


@dataclass
class Agent:
    """One whose model is the echo."""

    config: Config
    services: Services
    triple: Triple
    rooms: AgentRooms

    @property
    def all(self) -> Rooms:
        return self.services.shared(Rooms)

    async def send(self, client: str, session: str = "s", text: str = "Hi") -> Sent:
        """Sends to the session's present room, and waits for the end of the answer."""
        room = await self.rooms.new_session(OWNER, session)
        sent = await self.rooms.send(room, session, client, text, None)
        async for events in self.rooms.answer(sent, {}):
            end = events[-1]
        assert (isinstance(end, Done), end.status) == (True, "ok")  # type: ignore[union-attr]
        return sent


@asynccontextmanager
async def agent(folder: Path, name: str = "a", **rooms: Any) -> AsyncIterator[Agent]:
    root = folder / "ctx"
    config = Config(
        source=folder / "config.yaml",
        active_model="e",
        models={"e": Model(name="e", runtime="echo")},
        state_dir=folder / "state",
        sections={
            "ctx": Ctx(enabled=True, root=root, compile=False, agents={name: CtxAgent(model="e")}),
            "rooms": Settings(**rooms),
        },
    )
    await asyncio.to_thread(sync, root, config)
    triple = Triple.of(root, ObjectName("agent", name))
    async with asyncio.timeout(PATIENCE), Gateway(config) as gateway:
        services = Services(gateway)
        try:
            yield Agent(config, services, triple, AgentRooms(services, triple, root))
        finally:
            await services.close_shared()
            await services.aclose()


@pytest.mark.parametrize(
    ("file", "text"),
    [("limits", "model_calls=0\n"), ("system.md", "x" * 20_001), ("policy", f"access=read\nallow=*{'x' * 100}\n")],
)
async def test_a_file_that_no_room_can_have_is_named(file: str, text: str, tmp_path: Path) -> None:
    """It harms no room: neither the agent's own, nor those of others."""
    async with agent(tmp_path) as one:
        other = (await one.all.rent("local", "me", Rent())).id
        room = (await one.send("m1")).room
        path = one.triple.control / file
        before = path.read_text()
        for session in ("s", "new"):
            path.write_text(text)
            with pytest.raises(BadControlFile, match=f"^{file}: "):
                await one.send("m2", session)
            path.write_text(before)
        assert {shown.id for shown in (await one.all.visible("local", None, 10, 0))[0]} == {room, other}
        assert (await one.send("m3")).room == room


async def test_an_agent_may_have_any_name_of_an_object(tmp_path: Path) -> None:
    async with agent(tmp_path, "c++") as one:
        await one.send("m1")


async def test_a_session_outlives_the_pruning_of_its_released_rooms(tmp_path: Path) -> None:
    """Also if there were many."""
    async with agent(tmp_path, released_days=30) as one:
        released = 60
        for number in range(released):
            room = (await one.send(f"m{number}")).room
            await one.rooms.release(room)
        present = (await one.send("last")).room
        assert await prune(one.all.store, one.config, time.time() + 31 * DAY) == released
        found = await one.rooms.find(OWNER, "s")
        assert found is not None
        assert found.id == present
        assert (await one.send("more")).room == present
        assert [room.id for room in (await one.all.visible("local", None, 100, 0))[0]] == [present]


async def test_of_two_first_messages_one_is_told_that_the_session_is_busy(tmp_path: Path) -> None:
    async with agent(tmp_path) as one:
        await one.all.open()
        both = await asyncio.gather(one.send("m1"), one.send("m2"), return_exceptions=True)
        assert {type(result) for result in both} == {Sent, Busy}
        assert len((await one.all.visible("local", None, 10, 0))[0]) == 1


async def test_sessions_are_listed_behind_any_number_of_finished_tasks(tmp_path: Path) -> None:
    async with agent(tmp_path) as one:
        room = (await one.send("m1")).room
        await one.send("m2")
        await one.all.store.write(lambda connection: add_released(connection, 1001))
        (row,) = await sessions(one.config, one.triple.name)
        assert (row.object, row.session, row.state, row.messages, row.room) == ("agent/a", "s", "idle", 2, room)

"""A catalogue, its store, and a context to run tools in."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Config
from gateway.features.agents.settings import Rooms, RoomTools
from gateway.features.agents.tools import Catalogue, Toolbox, ToolContext, ToolPolicy, catalogue
from gateway.features.agents.tools.data import records
from gateway.features.agents.tools.files import file_system
from gateway.features.agents.tools.records import Records
from gateway.features.agents.tools.vfs import JailedFileSystem
from gateway.features.rooms.lifecycle import TOOLS
from gateway.features.rooms.workspace import folder
from gateway.store import Store
from tests.agents.web import Web
from tests.store.postgresql import Server, start


@dataclass
class LightModel:
    """Answers with the length of the prompt, and records the calls."""

    asked: list[tuple[str, str, str, int]] = field(default_factory=list)

    async def __call__(self, model: str, system: str, prompt: str, *, max_tokens: int) -> str:
        self.asked.append((model, system, prompt, max_tokens))
        return f" a summary of {len(prompt)} characters \n"


@dataclass
class Room:
    """Tools with a context, as in a room."""

    config: Config
    store: Store
    catalogue: Catalogue
    context: ToolContext
    policy: ToolPolicy
    light: LightModel

    async def run(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        return await (await self.toolbox()).run(tool, arguments)

    async def toolbox(self) -> Toolbox:
        return await self.catalogue.toolbox(self.policy, self.context)

    async def code(self, tool: str, /, **arguments: Any) -> str | None:
        """The code of an error result, else None."""
        error = (await self.run(tool, **arguments)).get("error", {})
        assert set(error) in (set(), {"code", "message"})
        code: str | None = error.get("code")
        return code

    def under(self, policy: ToolPolicy) -> Room:
        return replace(self, policy=policy)

    def another(self, tenant: str, room_id: str) -> Room:
        """The same tools in another room."""
        context = ToolContext(
            folder(self.config, tenant, room_id),
            lambda: records(self.config.section(Rooms).tools, self.store, tenant),
            self.light,
            writer=self.config.section(Rooms).tools.summary_model or "default",
        )
        return replace(self, context=context)

    @property
    def files(self) -> JailedFileSystem:
        assert self.context.files is not None
        return file_system(self.config.section(Rooms).tools, self.context.files)

    @property
    def records(self) -> Records:
        assert self.context.records is not None
        made: Records = self.context.records()
        return made


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    with start() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def both(request: pytest.FixtureRequest) -> str:
    """Makes a test run with either database."""
    return str(request.param)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file with its tables: making them takes longer than most tests."""
    path = tmp_path_factory.mktemp("store") / "store.db"

    async def make() -> None:
        await (await Store.open(f"sqlite:///{path}")).aclose()

    asyncio.run(make())
    return path


@pytest.fixture
async def store(request: pytest.FixtureRequest, tmp_path: Path, made: Path) -> AsyncIterator[Store]:
    if "both" in request.fixturenames and request.getfixturevalue("both") == "postgresql":
        url = request.getfixturevalue("postgresql").database()
    else:
        url = f"sqlite:///{shutil.copy(made, tmp_path)}"
    store = await Store.open(url)
    yield store
    await store.aclose()


@pytest.fixture
def make_room(store: Store, tmp_path: Path) -> Callable[..., Room]:
    """A room with full access whose catalogue has these bounds."""

    def make(**bounds: Any) -> Room:
        config = Config(
            source=tmp_path / "config.yaml",
            active_model="m",
            models={},
            state_dir=tmp_path / "state",
            sections={"rooms": Rooms(tools=RoomTools(**bounds))},
        )
        light = LightModel()
        every = catalogue(config.section(Rooms).tools, TOOLS)
        room = Room(config, store, every, ToolContext(), ToolPolicy("full"), light)
        return room.another("acme", "room-1")

    return make


@pytest.fixture
def room(make_room: Callable[..., Room]) -> Room:
    return make_room()


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    async with Web() as web:
        yield web

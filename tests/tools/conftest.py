"""A catalogue, its store, and a context to run tools in."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Config, Rooms, RoomTools
from gateway.rooms.lifecycle import TOOLS
from gateway.rooms.workspace import folder
from gateway.store import Store
from gateway.tools import Catalogue, ToolContext, ToolPolicy, catalogue
from gateway.tools.data import records
from gateway.tools.files import file_system
from gateway.tools.records import Records
from gateway.tools.vfs import JailedFileSystem
from tests.store.postgresql import Server, start
from tests.tools.web import Web


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
    light: LightModel

    async def run(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        return await self.catalogue.run(self.context, tool, arguments)

    async def code(self, tool: str, /, **arguments: Any) -> str | None:
        """The code of an error result, else None."""
        error = (await self.run(tool, **arguments)).get("error", {})
        assert set(error) in (set(), {"code", "message"})
        code: str | None = error.get("code")
        return code

    def other(self, **changes: Any) -> Room:
        return replace(self, context=replace(self.context, **changes))

    def another(self, tenant: str, room_id: str) -> Room:
        """The same tools in another room."""
        return self.other(tenant=tenant, folder=folder(self.config, tenant, room_id))

    @property
    def files(self) -> JailedFileSystem:
        return file_system(self.config.rooms.tools, self.context.folder)

    @property
    def records(self) -> Records:
        return records(self.config.rooms.tools, self.store, self.context.tenant)


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
            rooms=Rooms(tools=RoomTools(**bounds)),
        )
        light = LightModel()
        context = ToolContext("acme", "ann", folder(config, "acme", "room-1"), store, ToolPolicy("full"), light)
        return Room(config, store, catalogue(config.rooms.tools, TOOLS), context, light)

    return make


@pytest.fixture
def room(make_room: Callable[..., Room]) -> Room:
    return make_room()


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    async with Web() as web:
        yield web

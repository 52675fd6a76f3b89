"""A gateway on a real socket, in a thread of its own, before a scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from gateway.app import build
from gateway.config import Config, Model, Server
from gateway.features.agents.settings import MCP, MCPServer, Rooms
from gateway.features.media.settings import Media
from tests.gateway.client import Answer, Client
from tests.gateway.double import Double, Script
from tests.patience import PATIENCE
from tests.provider.server import serve

FAST = "gateway.server.fast_protocol:FastProtocol"
"""What `gateway.app.serve` gives to uvicorn; "httptools" is the plain ASGI way."""

NO_COMMENTS: Mapping[str, Any] = {"progress_after_seconds": 3600.0}
"""Settings of the server for tests in which a stream that begins late must still begin with an answer or a status."""


@dataclass
class Running:
    config: Config
    engine: Double
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def connect(self) -> Client:
        return await Client.connect(self.port)

    async def ask(self, body: dict[str, Any] | bytes, path: str = "/v1/chat/completions", head: str = "") -> Answer:
        """One request on a connection of its own."""
        async with await self.connect() as client:
            return await client.ask(body, path, head)


@asynccontextmanager
async def running(
    *scripts: Script,
    http: str = FAST,
    keys: tuple[str, ...] = (),
    max_body: int = 2**25,
    progress: Mapping[str, Any] | None = None,
    idle: int = 60,
    mcp: Mapping[str, MCPServer] | None = None,
    rooms: Rooms | None = None,
    media: Media | None = None,
    store: str | None = None,
    **model: Any,
) -> AsyncIterator[Running]:
    """Model `m` is the scripted engine, and the active one; `echo` is another. `model` are further settings of `m`.

    progress: the server's settings of a stream's comments; else there are none, however slow the machine is. idle:
    seconds until a connection is closed that nobody uses. mcp: servers of tools. rooms: has the bounds of turns. media:
    the bounds of uploads. store: the URL of one that outlives the gateway.
    """
    async with asyncio.timeout(PATIENCE), Double(*scripts).serve() as double:
        server = Server(api_keys=tuple(map(SecretStr, keys)), max_body_bytes=max_body, **(progress or NO_COMMENTS))
        settings = {"runtime": "openai", "base_url": f"http://127.0.0.1:{double.address.port}", **model}
        models = {"m": Model(name="m", **settings), "echo": Model(name="echo", runtime="echo")}
        sections = {"mcp": MCP(servers=mcp or {}), "rooms": rooms or Rooms(), "media": media or Media()}
        config = Config(
            source=Path(__file__),
            active_model="m",
            models=models,
            server=server,
            sections=sections,
            store=store,
        )
        with ExitStack() as stack:
            url = stack.enter_context(serve(build(config), lifespan="on", http=http, idle=idle))
            try:
                yield Running(config, double, int(url.rpartition(":")[2]))
            finally:
                # The engine must go on while the gateway ends.
                await asyncio.to_thread(stack.close)

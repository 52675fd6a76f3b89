"""The configured MCP servers of this process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from gateway.config.hidden import hider
from gateway.features.agents.settings import MCP, Rooms
from gateway.features.agents.tools.mcp.server import MCPConnections

if TYPE_CHECKING:
    from gateway.config import Config


class _HasConfig(Protocol):
    @property
    def config(self) -> Config: ...


class _HasGateway(Protocol):
    @property
    def gateway(self) -> _HasConfig: ...


class Servers:
    """Use `services.shared(Servers)`: rooms, Responses and `/ctx` then share the processes.

    If a reload changes a server's settings, the server ends, and starts again with the next call. What else a reload
    changes holds for its next call.
    """

    def __init__(self, services: _HasGateway) -> None:
        self._gateway = services.gateway
        self._servers: dict[str, MCPConnections] = {}
        self._seen: Config | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def present(self) -> list[MCPConnections]:
        """Those of the present configuration, in its order."""
        config = self._gateway.config
        wanted = config.section(MCP).servers
        for name in [name for name, server in self._servers.items() if wanted.get(name) != server.settings]:
            task = asyncio.create_task(self._servers.pop(name).aclose(), name=f"end the MCP server {name}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        for name, settings in wanted.items():
            if name not in self._servers:
                maximum = config.section(Rooms).tools.max_result_chars
                self._servers[name] = MCPConnections(name, settings, config.state_dir / "mcp" / name, maximum)
                self._seen = None
        if config is not self._seen:
            self._seen, hide = config, hider(config.secrets)
            for server in self._servers.values():
                server.maximum, server.hide = config.section(Rooms).tools.max_result_chars, hide
        return [self._servers[name] for name in wanted]

    async def aclose(self) -> None:
        await asyncio.gather(*(server.aclose() for server in self._servers.values()), *self._closing)

"""The tools that have objects: the gateway's own, and those that MCP servers had when they were last asked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from gateway.config import Config
from gateway.features.agents.settings import MCP, MCPServer, Rooms, RoomTools
from gateway.features.ctx.projection import is_component
from gateway.features.ctx.tree import STATE, write

if TYPE_CHECKING:
    from gateway.features.agents.tools import Tool

FILE = f"{STATE}/tools.json"


class Described(Struct, frozen=True):
    """A tool without the code that runs it."""

    name: str
    description: str
    parameters: dict[str, Any]
    access: str
    effect: str
    idempotent: bool
    cost: str

    @classmethod
    def of(cls, tool: Tool) -> Described:
        return cls(
            *(tool.name, tool.description, dict(tool.parameters), tool.access),
            *(tool.effect, tool.idempotent, tool.cost),
        )


class _Asked(Struct):
    """settings: a digest of those with which the server was asked."""

    settings: str
    tools: list[Described]


def known(root: Path, config: Config) -> list[Described]:
    """By name. Starts no server."""
    found = {tool.name: tool for tool in _own(config.section(Rooms).tools)}
    for name, asked in _read(root).items():
        settings = config.section(MCP).servers.get(name)
        if settings is not None and asked.settings == _digest(settings):
            found |= {tool.name: tool for tool in asked.tools if tool.name not in found}
    return [found[name] for name in sorted(found) if is_component(name)]


def unknown(root: Path, config: Config) -> list[str]:
    """The servers that must be asked for their tools."""
    asked = _read(root)
    return [
        name
        for name, settings in config.section(MCP).servers.items()
        if name not in asked or asked[name].settings != _digest(settings)
    ]


def remember(root: Path, config: Config, server: str, tools: Iterable[Tool]) -> None:
    """Keeps the tools of a server, so that its objects stay while it doesn't run."""
    settings = config.section(MCP).servers.get(server)
    if settings is not None:
        asked = {name: one for name, one in _read(root).items() if name in config.section(MCP).servers}
        asked[server] = _Asked(_digest(settings), [Described.of(tool) for tool in tools])
        write(root, FILE, msgspec.json.encode(asked), 0o600)


def _read(root: Path) -> dict[str, _Asked]:
    try:
        return msgspec.json.decode((root / FILE).read_bytes(), type=dict[str, _Asked])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}


def _digest(settings: MCPServer) -> str:
    """Changes with what decides about the tools; has no secret in it."""
    shown = [settings.command, settings.url, settings.pass_env, settings.allow, settings.access]
    return hashlib.sha256(msgspec.json.encode(shown)).hexdigest()


@lru_cache(maxsize=4)
def _own(settings: RoomTools) -> tuple[Described, ...]:
    from gateway.features.agents.tools.host import tools

    return tuple(map(Described.of, tools(settings)))

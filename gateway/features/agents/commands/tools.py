"""`ctxgate tools`"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gateway.cli.options import FILE, Group, Text, config_option, configuration, json_option
from gateway.cli.text import say
from gateway.errors import ProviderInvalidRequest, ProviderUnavailable
from gateway.features.agents.settings import Rooms
from gateway.wire.text import printable_json

if TYPE_CHECKING:
    from gateway.config import Config
    from gateway.features.agents.tools import Catalogue, Tool, Toolbox, ToolContext

T = TypeVar("T")

EXAMPLES = """\
examples:
  ctxgate tools ls                          the gateway's own tools, and those of the MCP servers in config.yaml
  ctxgate tools ls 'time.*'                 starts only the server `time`
  ctxgate tools call time.get_current_time '{"timezone": "Asia/Tokyo"}'
  echo '{"path": "README.md"}' | ctxgate tools call tool.cat
"""
RECORDS = ("aggregate", "data", "describe", "find")
"""Families of tools that work on records."""


@click.group(cls=Group, epilog=EXAMPLES)
@config_option
def tools(config: Path | None) -> None:
    """Lists and calls the tools that models may call: in rooms, in /ctx and in Responses.

    Starts and stops MCP servers itself, so no gateway has to run. Policies don't apply: you could do the same without
    this command.
    """


@tools.command("ls")
@config_option
@json_option
@click.argument("names", nargs=-1, metavar="[NAME]...", help="Tools to list; names may be globs (default: all).")
def ls(config: Path | None, as_json: bool, names: tuple[str, ...]) -> None:
    """Lists tools: what each does, whether a call may run twice, and what it costs.

    ACCESS is what a room's policy must grant. Exits with 69 if a server doesn't start.
    """

    async def work(toolbox: Toolbox) -> Toolbox:
        return toolbox

    toolbox = _with_tools(configuration(config), names, work)
    found = [tool for tool in toolbox.tools.values() if _named(tool.name, names)]
    if as_json:
        say(printable_json(json.dumps({"tools": [_shown(tool) for tool in found]}, indent=2, ensure_ascii=False)))
    else:
        from gateway.cli.table import show, table

        head = ("NAME", "ACCESS", "EFFECT", "TWICE", "COST", "DESCRIPTION")
        show(table(head, [_row(tool) for tool in found]))
    if toolbox.missing:
        raise ProviderUnavailable("; ".join(error.message for error in toolbox.missing.values()))
    if unknown := [name for name in names if not any(fnmatchcase(tool.name, name) for tool in found)]:
        raise _unknown(unknown[0])


@tools.command("call")
@config_option
@click.option("--folder", type=FILE, default=Path(), metavar="DIR", help="What tool.* sees as / (default: here).")
@click.option("--tenant", default="local", help="Tenant whose records the tools see (default: local).")
@click.argument("name", metavar="NAME", help="As `ctxgate tools ls` shows it.")
@click.argument(
    "arguments", type=Text(), required=False, metavar="[JSON]", help="A JSON object; if omitted, or -: from stdin."
)
def call(config: Path | None, folder: Path, tenant: str, name: str, arguments: str | None) -> None:
    """Calls a tool; prints its result as JSON.

    If the tool fails, it says so on stderr and exits with 2 for wrong arguments, 69 for a server that isn't there, else
    1.
    """
    files = folder.resolve()
    if not files.is_dir():
        raise ProviderInvalidRequest(f"--folder {folder}: there is no such folder")
    given = _parsed(sys.stdin.read() if arguments in (None, "-") else arguments)
    loaded = configuration(config)

    async def work(toolbox: Toolbox) -> dict[str, Any]:
        return await toolbox.run(name, given)

    result = _with_tools(loaded, (name,), work, lambda: _context(loaded, name, files, tenant))
    if (error := result.get("error")) is not None and set(result) == {"error"}:
        raise _failure(name, error["code"], error["message"])
    say(printable_json(json.dumps(result, indent=2, ensure_ascii=False)))


def _unknown(name: str) -> ProviderInvalidRequest:
    return ProviderInvalidRequest(f"no tool is called {name}; `ctxgate tools ls` lists them")


def _failure(name: str, code: str, message: str) -> Exception:
    """What ends the command as the tool's error should."""
    if code == "tool_unknown":
        return _unknown(name)
    if code == "invalid_arguments":
        return ProviderInvalidRequest(message, code=code)
    if code in ("mcp_unavailable", "mcp_busy", "mcp_interrupted", "mcp_timeout"):
        return ProviderUnavailable(message, code=code)
    return click.ClickException(f"{code}: {message}")


def _with_tools(
    config: Config,
    names: tuple[str, ...],
    work: Callable[[Toolbox], Awaitable[T]],
    context: Callable[[], Any] | None = None,
) -> T:
    """Runs `work` on the tools; starts the servers that a name matches. context: makes the context of the calls."""

    async def run() -> T:
        from gateway.features.agents.tools import ToolContext, ToolPolicy, catalogue
        from gateway.features.agents.tools.mcp.servers import Servers

        servers = Servers(SimpleNamespace(gateway=SimpleNamespace(config=config)))
        every: Catalogue = catalogue(config.section(Rooms).tools, (), servers.present)
        try:
            async with context() if context is not None else _nothing() as made:
                toolbox = await every.toolbox(ToolPolicy("full", names or ("*",)), made or ToolContext())
                return await work(toolbox)
        finally:
            await servers.aclose()

    return asyncio.run(run())


@asynccontextmanager
async def _nothing() -> AsyncIterator[None]:
    yield None


@asynccontextmanager
async def _context(config: Config, name: str, files: Path, tenant: str) -> AsyncIterator[ToolContext]:
    from gateway.features.agents.tools import ToolContext

    if name.partition(".")[0] not in RECORDS:
        yield ToolContext(files)
        return
    from gateway.features.agents.tools.data import records
    from gateway.services import store_url
    from gateway.store import Store

    store = await Store.open(store_url(config))
    try:
        yield ToolContext(files, lambda: records(config.section(Rooms).tools, store, tenant))
    finally:
        await store.aclose()


def _named(name: str, globs: tuple[str, ...]) -> bool:
    return not globs or any(fnmatchcase(name, glob) for glob in globs)


def _row(tool: Tool) -> tuple[str, ...]:
    description = tool.description.partition("\n")[0]
    shown = description if len(description) <= 80 else f"{description[:79]}…"
    return tool.name, tool.access, tool.effect, "yes" if tool.idempotent else "no", tool.cost, shown


def _shown(tool: Tool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "access": tool.access,
        "effect": tool.effect,
        "idempotent": tool.idempotent,
        "cost": tool.cost,
        "parameters": {**tool.parameters},
    }


def _parsed(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProviderInvalidRequest(f"the arguments aren't JSON: {error}") from None
    if not isinstance(value, dict):
        raise ProviderInvalidRequest("the arguments must be a JSON object")
    return value

"""One MCP server: starts on first use, ends after idle time, and starts again, later each time, if it fails."""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway import __version__
from gateway.errors import Backoff
from gateway.features.agents.settings import MCPServer
from gateway.features.agents.tools.base import Tool, ToolError
from gateway.features.agents.tools.mcp import results, stdio
from gateway.observe.shares import Tally, TenantPlaces

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client._transport import TransportStreams

BACK_OFF = Backoff(1.0, 60.0)
WAITING = 16
"""Calls that may wait for a place."""
PAGES = 16
"""The most pages of the list of tools."""
PROBE_SECONDS = 5.0
"""Time for a server to prove that it is alive after a call that took too long."""

log = logging.getLogger("ctxgate")


class MCPConnections:
    """Any number of turns may share it. `aclose` ends it for good."""

    def __init__(
        self, name: str, settings: MCPServer, folder: Path, maximum: int, hide: Callable[[str], str] = str
    ) -> None:
        """folder: the process's working folder. maximum: characters of a result. hide: hides secrets in texts."""
        self.name = name
        self.settings = settings
        self._folder = folder
        self.maximum = maximum
        self.hide = hide
        self._connection: _Connection | None = None
        self._open: set[_Connection] = set()
        """Also those that are about to end."""
        self._starting = asyncio.Lock()
        self._places = TenantPlaces(settings.at_a_time)
        self._calls = Tally()
        self._tools: list[Tool] | None = None
        self._failures = 0
        self._not_before = 0.0
        self._why = ""
        self._closed = False

    async def tools(self) -> Sequence[Tool]:
        """Raises ToolError while the server can't be started."""
        stale = self._connection is not None and self._connection.stale
        if self._tools is None or self._failures or stale:
            self._tools = await (await self._connected()).listed()
        return self._tools

    async def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """`{text, truncated}`. Raises ToolError: `mcp_unavailable`, `mcp_busy`, `mcp_timeout`, `mcp_invalid_answer`,
        `mcp_tool_failed`, `mcp_interrupted`: the server ended meanwhile."""
        if not self._calls.has_room(self.settings.at_a_time + WAITING):
            message = f"{self._calls.all} calls run or wait for the MCP server {self.name} already; try later"
            raise ToolError("mcp_busy", message)
        with self._calls.one_more():
            async with self._places.place():
                connection = await self._connected()
                given = await connection.call(tool, arguments, self.settings.call_seconds)
        self._failures = 0
        return results.result(given, self.maximum, self.hide)

    async def aclose(self) -> None:
        self._closed = True
        await asyncio.gather(*(connection.aclose() for connection in self._open))

    async def _connected(self) -> _Connection:
        async with self._starting:
            if self._closed:
                message = f"the MCP server {self.name} was stopped: its settings changed, or the gateway ends"
                raise ToolError("mcp_unavailable", message)
            if self._connection is not None and self._connection.alive:
                return self._connection
            if (left := self._not_before - time.monotonic()) > 0:
                message = f"the MCP server {self.name} doesn't run: {self._why}; it may start again in {left:.0f} s"
                raise ToolError("mcp_unavailable", message)
            connection = _Connection(self, self._folder)
            self._open.add(connection)
            try:
                await connection.start()
            except ToolError as error:
                self.failed(error.message)
                raise ToolError("mcp_unavailable", f"the MCP server {self.name}: {self._why}") from None
            self._connection = connection
            return connection

    def failed(self, why: str) -> None:
        """Postpones the next start."""
        self._failures += 1
        self._why = self.hide(why)
        self._not_before = time.monotonic() + BACK_OFF.delay(self._failures - 1)

    def ended(self, connection: _Connection) -> None:
        self._open.discard(connection)

    def changed(self) -> None:
        """The server has other tools now."""
        self._tools = None

    def log(self, message: str) -> None:
        log.warning("the MCP server %s: %s", self.name, self.hide(message))


class _Connection:
    """One run of a server, from its start to its end. A task of its own keeps it open, as the SDK requires."""

    def __init__(self, server: MCPConnections, folder: Path) -> None:
        self._server = server
        self._tools: list[Tool] = []
        self.stale = False
        """Whether the server has other tools than it listed."""
        self._settings = server.settings
        self._folder = folder
        self._pipe = stdio.Pipe(self._end)
        self._client: Client | None = None
        self._why: str | None = None
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._calls = 0
        self._idle: asyncio.TimerHandle | None = None

    @property
    def alive(self) -> bool:
        return self._client is not None and not self._over.is_set()

    async def start(self) -> None:
        """Returns once the tools are listed. Raises ToolError."""
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        started.add_done_callback(lambda future: future.exception())  # told, even if the caller has left
        self._task = asyncio.create_task(self._run(started), name=f"MCP server {self._server.name}")
        self._task.add_done_callback(lambda _: self._server.ended(self))
        try:
            await asyncio.shield(started)
        except asyncio.CancelledError:
            self._stop()
            raise
        self._wait_idle()

    async def aclose(self) -> None:
        self._stop()
        if self._task is not None:
            await asyncio.wait({self._task})

    def _stop(self) -> None:
        self._end("")
        if self._client is None and self._task is not None:
            self._task.cancel()  # it still waits for the server

    def _end(self, why: str) -> None:
        """Ends the server, for the first reason that is given; "" if it isn't a failure."""
        if self._why is None:
            self._why = why
            self._pipe.patient = self._pipe.patient and not why
            self._over.set()

    async def _run(self, started: asyncio.Future[None]) -> None:
        told = ""
        try:
            await asyncio.to_thread(_import_sdk)
            async with asyncio.timeout(self._settings.start_seconds) as limit:
                from mcp import Client
                from mcp_types import Implementation

                client = Client(
                    self._transport(),
                    cache=None,
                    client_info=Implementation(name="ctxgate", version=__version__),
                    message_handler=self._heard,
                )
                async with client:
                    self._tools = await self._list(client)
                    self._client = client
                    limit.reschedule(None)
                    self._pipe.patient = self._why is None
                    if not started.done():
                        started.set_result(None)
                    await self._over.wait()
        except TimeoutError:
            told = f"it wasn't ready within {self._settings.start_seconds:g} s{self._noise()}"
        except ModuleNotFoundError as error:
            told = f"the package {error.name} is missing: pip install 'ctxgate[mcp]'"
        except asyncio.CancelledError:
            # By `_stop`, or by the SDK, which cancels whoever holds a transport that broke.
            told = "the connection broke"
        except Exception as error:  # noqa: BLE001 - the SDK, its transports and strangers' answers raise anything
            told = _reason(error)
        finally:
            told = told if self._why is None else self._why
            self._end(told)
            if not started.done():
                started.set_exception(ToolError("mcp_unavailable", told or "it was stopped"))
            elif told:
                self._server.failed(told)
            if self._idle is not None:
                self._idle.cancel()
            if told:
                said = self._pipe.last_words
                self._server.log(f"{told}; it says last: {said[:300]}" if said and said != told else told)

    def _transport(self) -> AbstractAsyncContextManager[TransportStreams]:
        settings = self._settings
        if settings.url is not None:
            from gateway.features.agents.tools.mcp import http

            headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
            return http.connect(settings.url, headers, settings.call_seconds)
        env = stdio.environment(
            {name: value.get_secret_value() for name, value in settings.env.items()}, settings.pass_env
        )
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return stdio.connect(settings.command, env, self._folder, self._pipe)

    async def _list(self, client: Client) -> list[Tool]:
        listed, cursor = [], None
        for _ in range(PAGES):
            page = await self._or_over(client.list_tools(cursor=cursor))
            listed += page.tools
            if (cursor := page.next_cursor) is None:
                break
        server = self._server
        return results.tools(server.name, self._settings, listed, server.call)

    async def _heard(self, message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            self.stale = True
            self._server.changed()

    async def listed(self) -> list[Tool]:
        """The tools, asked for again once the server said that they changed; the earlier ones if it doesn't list them.

        Raises ToolError.
        """
        if self.stale and self._client is not None:
            self.stale = False
            try:
                async with asyncio.timeout(self._settings.call_seconds):
                    self._tools = await self._list(self._client)
            except TimeoutError:
                self._end("it doesn't list its tools")
                raise self._interrupted() from None
            except ToolError:
                raise
            except Exception as error:  # noqa: BLE001 - the SDK, its transports and strangers' answers raise anything
                self.stale = True
                self._server.log(f"it doesn't list its tools, the earlier ones stay: {_reason(error)}")
        return self._tools

    async def call(self, tool: str, arguments: dict[str, Any], seconds: float) -> Any:
        """The SDK's CallToolResult. Raises ToolError."""
        from mcp import MCPError
        from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult
        from pydantic import ValidationError

        assert self._client is not None
        # Not `call_tool`: that checks the answer against the server's own schema, unbounded and in the event loop.
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=arguments))
        self._calls += 1
        try:
            async with asyncio.timeout(seconds):
                return await self._or_over(self._client.session.send_request(request, CallToolResult))
        except TimeoutError:
            await self._probe()
            message = f"{self._server.name}.{tool} gave no answer within {seconds:g} s; it may still take effect"
            raise ToolError("mcp_timeout", message) from None
        except ValidationError:
            message = f"the MCP server {self._server.name} gave an answer that MCP doesn't allow"
            raise ToolError("mcp_invalid_answer", message) from None
        except MCPError as error:
            if self._settings.url is not None:
                await self._probe()  # a session that its server forgot looks like this
            if self._over.is_set():
                raise self._interrupted() from None
            raise ToolError("mcp_tool_failed", self._server.hide(error.error.message)[:2000]) from None
        finally:
            self._calls -= 1
            self._wait_idle()

    async def _or_over(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The work's result. Raises ToolError, code `mcp_interrupted`, if the connection ends first."""
        task = asyncio.create_task(work)
        over = asyncio.create_task(self._over.wait())
        try:
            await asyncio.wait({task, over}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise self._interrupted()
        finally:
            for one in (task, over):
                one.cancel()
            await asyncio.wait({task, over})

    def _interrupted(self) -> ToolError:
        why = f"the MCP server {self._server.name} stopped during the call: {self._why or 'the gateway ends'}"
        return ToolError("mcp_interrupted", self._server.hide(f"{why}; it may have taken effect"))

    async def _probe(self) -> None:
        """Ends a server that no longer answers; if it is alive, other calls to it continue."""
        assert self._client is not None
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self._client.list_tools()
        except TimeoutError:
            self._end("it hangs: it answers no more")
        except Exception as error:  # noqa: BLE001 - the SDK, its transports and strangers' answers raise anything
            self._end(f"it doesn't list its tools any more: {_reason(error)}")

    def _wait_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        if self._calls == 0 and not self._over.is_set():
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(self._settings.idle_seconds, self._end, "")

    def _noise(self) -> str:
        skipped = self._pipe.skipped
        return f" and wrote {skipped} lines that are no MCP messages" if skipped else ""


def _import_sdk() -> None:
    """It takes half a second, so a thread does it. What strangers write would fill its logs."""
    importlib.import_module("mcp")
    for name in ("mcp", "client"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ToolError):
        return error.message
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return f"{type(error).__name__}: {error}".partition("\n")[0][:300]

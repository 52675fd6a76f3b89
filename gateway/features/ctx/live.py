"""The tree of a running gateway: answers at the objects' sockets and updates their status and log files."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.config import Config
from gateway.errors import GatewayError
from gateway.features.ctx.availability import OFFLINE, READY, talks, word
from gateway.features.ctx.callog import CallLog
from gateway.features.ctx.connection import Connection, Wire
from gateway.features.ctx.errors import Busy, code
from gateway.features.ctx.events import Error, Status, line
from gateway.features.ctx.frames import MAX_FRAME
from gateway.features.ctx.objects import Triple
from gateway.features.ctx.projection import projection
from gateway.features.ctx.runner_connection import RunnerConnection
from gateway.features.ctx.sync import sync
from gateway.features.ctx.tools.known import remember, unknown
from gateway.features.ctx.tree import (
    EXEC_SOCKET,
    GATEWAY_LOCK,
    MANIFEST,
    STATE,
    find_root,
    locked,
    objects,
    others,
    prepare,
    read_control,
    write,
)
from gateway.services import Services

if TYPE_CHECKING:
    from gateway.features.ctx.sessions import Sessions

MAX_CONNECTIONS = 1024
"""Clients of all sockets together."""
POLL_SECONDS = 1.0
"""How often to check for changes of the configuration, the tree and the engines."""
PARTING_SECONDS = 2.0
"""Time for clients to read the end of their runs when the gateway stops."""

log = logging.getLogger("ctxgate")


@asynccontextmanager
async def live(services: Services) -> AsyncIterator[None]:
    """Serves the tree in the background: the gateway's start doesn't wait for it."""
    tree = LiveTree(services)
    running = asyncio.create_task(tree.run(), name="serve the tree")
    try:
        yield
    finally:
        tree.stop.set()
        await running


class LiveTree:
    """One tree. `run` serves it until `stop` is set."""

    def __init__(self, services: Services) -> None:
        self.stop = asyncio.Event()
        self.ready = asyncio.Event()
        """Set when every socket is in place."""
        self._services = services
        self._woken = asyncio.Event()
        self._servers: dict[Path, asyncio.Server] = {}
        self._clients: dict[asyncio.Task[None], Wire] = {}
        self._models: dict[str, str] = {}
        """Path of an object's status file → the text of its `id` file."""
        self._others: set[str] = set()
        """Paths of the status files of agents and tools."""
        self._statuses: dict[str, str] = {}
        self._watched: set[int] = set()
        self._numbers = count()
        self._log = CallLog()
        self._asking: asyncio.Task[None] | None = None
        self._opened: Sessions | None = None
        self._complained = ""

    async def run(self) -> None:
        """Serves the tree. While that fails, logs why, once, and tries again: the gateway continues without it."""
        while not self.stop.is_set():
            try:
                self._root = find_root(None, self._services.gateway.config)
                await asyncio.to_thread(prepare, self._root)
                with self._alone():
                    await self._serve()
            except BlockingIOError:
                self._complain(f"another gateway serves {self._root}; this one will once that has ended")
            except (GatewayError, OSError) as error:
                self._complain(str(error))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stop.wait(), POLL_SECONDS)

    def _complain(self, what: str) -> None:
        """Logs what fails, unless it did so the last time, too."""
        if what != self._complained:
            self._complained = what
            log.error("/ctx: %s", what)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with locked(self._root / GATEWAY_LOCK, seconds=0):
            yield

    async def _serve(self) -> None:
        services, root = self._services, self._root
        stopping = asyncio.create_task(self.stop.wait())
        try:
            await self._listen(root / EXEC_SOCKET, self._runner, MAX_FRAME)
            config: Config | None = None
            seen = 0.0
            while not self.stop.is_set():
                if config is not services.gateway.config:
                    self._watch()
                    config = await self._synced(services.gateway.config)
                    asks = config is not None and unknown(root, config)
                    if asks and (self._asking is None or self._asking.done()):
                        self._asking = asyncio.create_task(self._ask_servers(), name="ask for tools")
                self._woken.clear()
                try:
                    changed = await asyncio.to_thread(_changed_at, root / MANIFEST)
                    if changed != seen:
                        await self._sockets()
                        seen = changed
                    await self._refresh()
                    self.ready.set()
                    self._complained = "" if config is not None else self._complained
                except OSError as error:
                    # A full disk or a removed tree, for example. The next check may succeed.
                    self._complain(str(error))
                waking = asyncio.create_task(self._woken.wait())
                await asyncio.wait({stopping, waking}, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                waking.cancel()
        finally:
            stopping.cancel()
            await self._end()

    async def _synced(self, config: Config) -> Config | None:
        """The configuration, once the tree matches it; None if that failed, and has to be tried again."""
        try:
            report = await asyncio.to_thread(sync, self._root, config)
        except (GatewayError, OSError) as error:
            self._complain(str(error))
            return None
        if report.kept:
            log.warning("/ctx: changed by hand and kept: %s", ", ".join(report.kept))
        return config

    async def _ask_servers(self) -> None:
        """Asks MCP servers that are new in the configuration for their tools, so that these have objects."""
        from gateway.features.agents.tools import ToolError
        from gateway.features.agents.tools.mcp.servers import Servers

        config = self._services.gateway.config
        wanted = unknown(self._root, config)
        for server in self._services.shared(Servers).present():
            if server.name in wanted:
                try:
                    tools = await server.tools()
                    await asyncio.to_thread(remember, self._root, config, server.name, tools)
                except (ToolError, OSError) as error:
                    log.warning("/ctx: no objects for the tools of the MCP server %s: %s", server.name, error)
        await self._synced(config)
        self._woken.set()

    async def _end(self) -> None:
        self.ready.clear()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait({self._asking})
            self._asking = None
        for server in self._servers.values():
            server.close()
        if self._opened is not None:
            await self._opened.aclose()
            self._opened = None
        for wire in self._clients.values():
            wire.hang_up()
        if self._clients:
            await asyncio.wait(self._clients, timeout=PARTING_SECONDS)
        for client in self._clients:
            client.cancel()
        if self._clients:
            await asyncio.wait(self._clients)
        for path in self._servers:
            path.unlink(missing_ok=True)
        self._servers.clear()
        await asyncio.to_thread(self._write_changes, dict.fromkeys(self._statuses, OFFLINE))
        self._statuses.clear()

    # Sockets

    async def _sockets(self) -> None:
        """Opens and closes what the tree declares by now."""
        declared: dict[Path, Triple] = {}
        self._others = set()
        models: dict[str, str] = {}
        for triple in await asyncio.to_thread(lambda: [*objects(self._root)]):
            status = f"{triple.name}.d/status"
            models[status] = ""
            try:
                control = await asyncio.to_thread(read_control, triple)
                models[status] = control.id
                if control.session == "socket" and talks(self._services.gateway.config, control.id):
                    declared[triple.sock] = triple
            except GatewayError as error:
                log.error("/ctx: %s: %s", triple.name, error)
        for triple in await asyncio.to_thread(lambda: [*others(self._root)]):
            self._others.add(f"{triple.name}.d/status")
            if triple.name.kind == "agent":
                declared[triple.sock] = triple
        self._models = models
        kept = {"status", *models, *self._others}
        self._statuses = {path: said for path, said in self._statuses.items() if path in kept}
        for path in [*self._servers]:
            if path not in declared and path != self._root / EXEC_SOCKET:
                self._servers.pop(path).close()
                path.unlink(missing_ok=True)
        for path, triple in declared.items():
            if path in self._servers and not await asyncio.to_thread(path.is_socket):
                # Somebody has removed it. Its clients stay connected.
                self._servers.pop(path).close()
            if path not in self._servers:
                await self._listen(path, partial(self._object, triple), MAX_FRAME)

    async def _listen(self, path: Path, serve: Callable[[Wire], Awaitable[None]], limit: int) -> None:
        """Binds the socket elsewhere and renames it, so it is never open to other users or unserved at its place."""
        aside = self._root / STATE / f"s{next(self._numbers)}"
        aside.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX)
        try:
            listening.bind(os.fspath(aside))
            aside.chmod(0o600)
            listening.setblocking(False)
            listening.listen(MAX_CONNECTIONS)
            accept = partial(self._accept, serve, limit)
            self._servers[path] = await asyncio.start_unix_server(accept, sock=listening, backlog=MAX_CONNECTIONS)
            aside.replace(path)
        except BaseException:
            listening.close()
            raise

    async def _accept(
        self,
        serve: Callable[[Wire], Awaitable[None]],
        limit: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        client = asyncio.current_task()
        assert client is not None
        wire = Wire(reader, writer, limit)
        self._clients[client] = wire
        try:
            if len(self._clients) > MAX_CONNECTIONS:
                busy = Busy(f"{MAX_CONNECTIONS} clients are connected")
                await wire.write([line(Error(code=code(busy), message=busy.message))])
            else:
                await serve(wire)
            await wire.flush()
            writer.close()
        except ConnectionError:
            pass  # the client is gone
        except asyncio.CancelledError:
            if not self.stop.is_set():
                raise
        except Exception:
            log.exception("/ctx: a connection failed")
        finally:
            del self._clients[client]
            if not writer.is_closing():
                writer.transport.abort()

    async def _sessions(self) -> Sessions:
        if self._opened is None:
            if self.stop.is_set():
                raise Busy("the gateway is stopping", retry_after=1)
            # Importing the store is slow, and most trees never need it.
            module = await asyncio.to_thread(import_module, "gateway.features.ctx.sessions")
            if self._opened is None:
                self._opened = module.Sessions(self._services, f"{socket.gethostname()}:{self._root}", self._ended)
        return self._opened

    async def _object(self, triple: Triple, wire: Wire) -> None:
        if triple.name.kind == "agent":
            module = await asyncio.to_thread(import_module, "gateway.features.ctx.agents.connection")
            await module.AgentConnection(wire, triple, self._root, self._services, self._ended).serve()
            return
        await Connection(wire, triple, self._sessions, self._services, self._ended).serve()

    async def _runner(self, wire: Wire) -> None:
        await RunnerConnection(wire, self._root, self._services, self._ended).serve()

    # Status and log files

    def _watch(self) -> None:
        """Subscribes to state changes of engines that are new since the last reload."""
        for route in self._services.gateway.routes.values():
            if route.engine is not None and id(route.engine) not in self._watched:
                self._watched.add(id(route.engine))
                route.engine.on_change(lambda _: self._woken.set())

    def _ended(self, triple: Triple, session: str | None, run: str, status: Status) -> None:
        self._log.add(triple, session, run, status)
        self._woken.set()

    async def _refresh(self) -> None:
        gateway = self._services.gateway
        objects = projection(gateway.config).objects
        now = dict.fromkeys(self._others, READY) | {
            path: word(gateway, objects, model) for path, model in self._models.items()
        }
        now["status"] = READY  # last: it says that the others are there
        changed = {path: status for path, status in now.items() if self._statuses.get(path) != status}
        self._statuses |= changed
        if changed or self._log.waiting:
            await asyncio.to_thread(self._write_changes, changed)

    def _write_changes(self, statuses: dict[str, str]) -> None:
        for path, status in statuses.items():
            # Someone may have just removed the object by hand.
            with contextlib.suppress(FileNotFoundError):
                write(self._root, path, f"{status}\n".encode(), 0o600)
        self._log.flush(self._root)


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0.0

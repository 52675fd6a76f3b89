"""This gateway as a member of the cluster: knows where engines are and how busy, and reports its own load."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from secrets import token_hex
from typing import Any
from urllib.parse import urlsplit

import msgspec
from pydantic import SecretStr

from gateway.config import Config, Model
from gateway.engines.environment import inherited
from gateway.errors import Backoff, GatewayError
from gateway.features.cluster import keys, tables
from gateway.features.cluster.backend import ClusterBackend, Shared
from gateway.features.cluster.bus import MAX_BYTES, Bus
from gateway.features.cluster.forward import Forward
from gateway.features.cluster.settings import Cluster
from gateway.features.cluster.values import (
    AWAY,
    HERE,
    Changed,
    EngineRow,
    Failed,
    Load,
    Message,
    NodeRow,
    Settings,
    placeable,
    split,
)
from gateway.features.keys.limiter import limiter
from gateway.server.keys import FILE
from gateway.services import Services, store_url

TELL_SECONDS = 0.2
"""The shortest time between messages with news."""
WHOLE_SECONDS = 2.0
"""Time between messages with the complete state."""
SILENT_SECONDS = 8.0
"""A gateway that sends nothing for this long counts as dead, and its requests as over."""
AGAIN = Backoff(1.0, 30.0)
MAX_NEWS = 64
"""The most prompts of one engine in a message."""
END_SECONDS = 5.0

log = logging.getLogger("ctxgate")


class Pool:
    """The engines that the cluster runs, and the way to its gateways: a `gateway.core.pool.EnginePool`."""

    def __init__(self, config: Config) -> None:
        self._cluster = config.section(Cluster)
        self._store = store_url(config)
        self._forward = Forward()
        self._member: Member | None = None
        self.config = config
        self.backends: dict[str, ClusterBackend] = {}
        self.news = asyncio.Event()
        self.urgent = False
        self.shared = Shared(lambda: self.config, self._changed)
        self.rows: list[EngineRow] = []

    @cached_property
    def address(self) -> str:
        return self._cluster.gateway_url.replace("{host}", self._cluster.host or _own_host(self._store))

    def joined(self, member: Member) -> None:
        """Called once this gateway is one of the cluster's."""
        self._member = member

    def status(self) -> dict[str, object]:
        return self._member.status() if self._member is not None else {}

    async def forward(self, handler: Callable[[Any], Awaitable[Any]], request: Any) -> Any:
        return await self._forward(handler, request)

    async def aclose(self) -> None:
        await self._forward.aclose()

    def backend(self, model: Model) -> ClusterBackend | None:
        if not placeable(model):
            return None
        backend = self.backends[model.name] = ClusterBackend(model, self.shared)
        if self.rows:
            backend.update(self.rows)
        return backend

    def update(self, rows: list[EngineRow]) -> None:
        self.rows = rows
        for backend in self.backends.values():
            backend.update(rows)

    def _changed(self, urgent: bool) -> None:
        self.urgent = self.urgent or urgent
        self.news.set()


class Member:
    def __init__(self, services: Services, pool: Pool) -> None:
        config = services.gateway.config
        self.nodes: list[NodeRow] = []
        self._cluster = config.section(Cluster)
        self._services = services
        self._pool = pool
        self._bus = Bus(store_url(config), self._heard, self._read_tables)
        self._heard_of: dict[str, tuple[float, Load]] = {}
        self._id = token_hex(6)
        self._limiter = services.shared(limiter)
        self.url = pool.address
        self._rereading = asyncio.Event()
        self._settings_changed = asyncio.Event()

    @property
    def gateways(self) -> list[str]:
        """The gateways that are alive, including this one."""
        now = time.monotonic()
        return sorted({load.url for at, load in self._heard_of.values() if now - at < SILENT_SECONDS} | {self.url})

    def status(self) -> dict[str, object]:
        """For status pages."""
        return {
            "store": self._bus.alive,
            "ray": not self._pool.shared.away,
            "gateways": self.gateways,
            "nodes": msgspec.to_builtins(self.nodes),
        }

    def reconfigured(self) -> None:
        self._pool.config = self._services.gateway.config
        self._settings_changed.set()

    # What others tell

    def _heard(self, message: Message) -> None:
        if isinstance(message, Changed):
            self._rereading.set()
        elif isinstance(message, Failed):
            if (backend := self._pool.backends.get(message.model)) is not None:
                backend.failed(message)
        elif message.gateway != self._id:
            self._note(message)

    def _note(self, load: Load) -> None:
        self._heard_of[load.gateway] = time.monotonic(), load
        self._limiter.add_remote_usage(load.gateway, load.used, whole=load.whole)
        for backend in self._pool.backends.values():
            for id, engine in backend.engines.items():
                if id in load.busy or load.whole:
                    backend.others(load.gateway, engine, load.busy.get(id, 0))
                if prompts := load.read.get(id):
                    backend.has_read(engine, prompts)

    def _forget_silent(self) -> None:
        now = time.monotonic()
        for gateway, (at, _) in [*self._heard_of.items()]:
            if now - at > SILENT_SECONDS:
                del self._heard_of[gateway]
                self._limiter.add_remote_usage(gateway, {}, whole=True)
                for backend in self._pool.backends.values():
                    for engine in backend.engines.values():
                        backend.others(gateway, engine, 0)

    async def _read_tables(self) -> None:
        try:
            store = await self._services.store()
            if self._pool.shared.key is None:
                self._pool.shared.key = SecretStr(await store.write(tables.key))
            rows, self.nodes, callers = await store.read(
                lambda connection: (tables.engines(connection), tables.nodes(connection), tables.callers(connection))
            )
            if callers:
                await asyncio.to_thread(keys.copy, callers, self._services.gateway.config.state_dir / FILE)
            self._pool.update(rows)
        except GatewayError as error:
            raise OSError(str(error)) from error
        self._pool.shared.changed(True)

    # What it does

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._bus.run(), name="cluster: listen")
            tasks.create_task(self._reread(), name="cluster: read the tables")
            tasks.create_task(self._tell(), name="cluster: tell the load")
            tasks.create_task(self._keep_agent(), name="cluster: agent")

    async def aclose(self) -> None:
        await self._bus.send(split(Load(self._id, self.url, whole=True), MAX_BYTES)[0])
        await self._bus.aclose()

    async def _reread(self) -> None:
        while True:
            await self._rereading.wait()
            self._rereading.clear()
            try:
                await self._read_tables()
            except OSError as error:
                log.warning("cluster: the engines can't be read; known ones keep working: %s", error)
                await asyncio.sleep(1)
                self._rereading.set()

    async def _tell(self) -> None:
        told: dict[str, int] = {}
        whole_at = 0.0
        while True:
            # Not wait_for: before Python 3.12 it loses a cancellation that comes together with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WHOLE_SECONDS):
                    await self._pool.news.wait()
            self._pool.news.clear()
            now = time.monotonic()
            busy = {
                id: engine.in_flight
                for backend in self._pool.backends.values()
                for id, engine in backend.engines.items()
            }
            whole = now - whole_at >= WHOLE_SECONDS
            if whole:
                whole_at = now
                self._forget_silent()
                changed = {id: count for id, count in busy.items() if count}
            else:
                changed = {id: count for id, count in busy.items() if told.get(id, 0) != count}
            waiting = {name: each.waiting.all for name, each in self._pool.backends.items() if each.waiting.all}
            told = busy
            used = self._limiter.unreported_usage(whole=whole)
            load = Load(self._id, self.url, changed, waiting, self._read_since(), used, whole)
            for message in split(load, MAX_BYTES):
                await self._bus.send(message)
            if not self._pool.urgent:
                await asyncio.sleep(TELL_SECONDS)
            self._pool.urgent = False

    def _read_since(self) -> Mapping[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for backend in self._pool.backends.values():
            for id, engine in backend.engines.items():
                if engine.news:
                    found[id] = tuple(dict.fromkeys(engine.news[-MAX_NEWS:]))
                    engine.news.clear()
        return found

    async def _keep_agent(self) -> None:
        """Ray may end the agent at any time: engines keep running, and a new agent tries again."""
        failures = 0
        while True:
            began = time.monotonic()
            await self._run_agent()
            self._ray(here=False)
            failures = 1 if time.monotonic() - began > 60 else failures + 1
            log.warning("cluster: the connection to Ray at %s ended; running engines keep working", self._cluster.ray)
            await asyncio.sleep(AGAIN.delay(failures))

    async def _run_agent(self) -> None:
        argv = (sys.executable, "-P", "-m", "gateway.features.cluster.agent")
        agent = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**inherited(("RAY_ADDRESS", "RAY_AUTH_TOKEN"))},
        )
        assert agent.stdin is not None
        assert agent.stdout is not None
        telling = asyncio.create_task(self._tell_settings(agent.stdin))
        try:
            while line := await agent.stdout.readline():
                if (said := line.decode(errors="replace").strip()) in (HERE, AWAY):
                    self._ray(here=said == HERE)
            await agent.wait()
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
            if agent.returncode is None:
                agent.stdin.close()
                try:
                    await asyncio.wait_for(agent.wait(), END_SECONDS)
                except TimeoutError:
                    agent.kill()
                    await agent.wait()

    def _ray(self, *, here: bool) -> None:
        away = "" if here else f"Ray's head doesn't answer (cluster.ray: {self._cluster.ray})"
        if away != self._pool.shared.away:
            self._pool.shared.away = away
            log.warning("cluster: %s", f"{away}; running engines keep working" if away else "Ray's head answers again")
            self._pool.update(self._pool.rows)

    async def _tell_settings(self, stdin: asyncio.StreamWriter) -> None:
        while True:
            self._settings_changed.clear()
            data = pickle.dumps(self._settings())
            stdin.write(len(data).to_bytes(8, "little") + data)
            await stdin.drain()
            await self._settings_changed.wait()

    def _settings(self) -> Settings:
        config = self._services.gateway.config
        models = {name: model for name, model in config.models.items() if placeable(model)}
        return Settings(self._cluster, store_url(config), models, config.engines, config.prompts, config.state_dir)


@asynccontextmanager
async def member(services: Services) -> AsyncIterator[None]:
    """Runs beside the APIs while the gateway serves."""
    pool = services.gateway.pool
    assert isinstance(pool, Pool)
    this = Member(services, pool)
    services.gateway.on_change(this.reconfigured)
    pool.joined(this)
    running = asyncio.create_task(this.run(), name="cluster")
    running.add_done_callback(_ended)
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await this.aclose()
        await pool.aclose()


def _ended(running: asyncio.Task[None]) -> None:
    if not running.cancelled() and (error := running.exception()) is not None:
        log.error("cluster: this gateway is no member any more, until it starts again", exc_info=error)


def _own_host(store: str) -> str:
    """The address from which this machine reaches the database."""
    url = urlsplit(store)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing.
            probe.connect((url.hostname or "127.0.0.1", url.port or 5432))
        except OSError:
            return socket.gethostname()
        found: str = probe.getsockname()[0]
        return found

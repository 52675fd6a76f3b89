"""The composition root: wires all parts, once. Start reading here."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from gateway.api.entry import API
from gateway.config import Config
from gateway.core import Gateway
from gateway.core.pool import EnginePool
from gateway.core.reload import Load, Reloader
from gateway.feature import imported, installed, lacking, offered
from gateway.observe import logs
from gateway.observe.shares import Workers
from gateway.server.bodies import return_large_blocks
from gateway.server.end_guard import DOUBLED_SECONDS, EndGuard
from gateway.services import Services
from normalizers import FormatSpec, registry

if TYPE_CHECKING:
    from gateway.server.tls import Certificate

IDLE_SECONDS = 75
"""How long a connection may be unused. Longer than clients keep theirs (httpx and OpenAI's library 5 s, aiohttp 15): a
request that is sent while the gateway closes would be lost. Idle connections give way to new ones anyway."""
GRACE_SECONDS = 10
END_SECONDS = 30
"""Time from the first signal to the end of the process, even if something hangs."""
WARMED_AFTER_SECONDS = 0.1
"""Delay before loading modules for later answers, so that they don't compete with the first one for the GIL."""
GUARDED_AFTER_SECONDS = 1.0
"""Delay before starting the guard's process, so that it doesn't compete with the first requests for the processor."""
SWITCH_SECONDS = 0.0005
"""How long a thread keeps the GIL while the event loop waits for it, as it does after each read of a socket. By
Python's 5 ms, one who sends large bodies on twelve connections delays everybody's by a factor of twelve; so, of 3.5."""

log = logging.getLogger("ctxgate")


def prunes() -> tuple[str, ...]:
    """Import strings of the functions that prune the store; see `gateway.store.retention`."""
    return tuple(prune for feature in installed() for prune in feature.prunes)


def build(config: Config, load: Load | None = None) -> API:
    """The ASGI application for a configuration. Its lifespan stops the engines that it started.

    load: reads the configuration again, for reloads; None allows none.
    """
    return wired(config, load)[0]


def wired(config: Config, load: Load | None) -> tuple[API, Services]:
    pool: EnginePool | None = offered("engine_pool")(config) if "cluster" in config.sections else None
    gateway = Gateway(config, pool)
    reloader = Reloader(gateway, load) if load is not None else None
    services = Services(gateway, reloader, prunes())

    @asynccontextmanager
    async def background() -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(services.aclose)
            services.keep_usage()
            if reloader is not None:
                await stack.enter_async_context(_reloading(gateway, reloader))
            for feature in installed():
                for each in feature.background:
                    if each.wanted(config):
                        if lack := lacking(feature):
                            log.warning("%s: %s", feature.name, lack)
                        await stack.enter_async_context(imported(each.factory)(services))
            yield

    return API(services, background), services


@asynccontextmanager
async def _reloading(gateway: Gateway, reloader: Reloader) -> AsyncIterator[None]:
    """Watches the file while `server.watch` says so."""
    watching: asyncio.Task[None] | None = None

    def configured() -> None:
        nonlocal watching
        logs.configure(gateway.config)
        wanted = gateway.config.server.watch
        if wanted and watching is None:
            watching = asyncio.create_task(reloader.watch(), name="watch config.yaml")
        elif not wanted and watching is not None:
            watching.cancel()
            watching = None

    configured()
    gateway.on_change(configured)
    try:
        yield
    finally:
        if watching is not None:
            watching.cancel()


def serve(config: Config, load: Load, sockets: list[socket.socket], certificate: Certificate | None = None) -> None:
    """Serves on listening sockets until SIGINT or SIGTERM, then gives answers in flight GRACE_SECONDS to end.

    A second signal ends the process at once; END_SECONDS after the first it ends anyway, whatever hangs (`EndGuard`).
    SIGHUP reloads, the certificate too. certificate: serves https; None: plain HTTP.
    """
    return_large_blocks()
    app, services = wired(config, load)
    settings = uvicorn.Config(
        app,
        http="gateway.server.fast_protocol:FastProtocol",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
        ssl_context_factory=(lambda config, default: certificate.context) if certificate is not None else None,
    )
    active = config.resolve(None)
    formats = [active.custom_format or active.tool_call_format]
    _Server(settings, services, formats, certificate).run(sockets)


class _Server(uvicorn.Server):
    """Loads the formats' parsers in a thread once it serves, so that the first call needn't."""

    def __init__(
        self,
        config: uvicorn.Config,
        services: Services,
        formats: list[str | FormatSpec],
        certificate: Certificate | None,
    ) -> None:
        super().__init__(config)
        self._certificate = certificate
        self._services = services
        self._reloader = services.reloader
        self._formats = formats
        self._on_terminal = sys.stderr.isatty()
        self._told_to_end: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Runs between two instructions of the main thread, even if the event loop hangs. A guard ends each engine
        whose gateway is gone (`gateway.engines.guard`)."""
        now = time.monotonic()
        if self._told_to_end is None:
            self._arm_forced_exit()
            super().handle_exit(sig, frame)
        elif now - self._told_to_end > DOUBLED_SECONDS:
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)

    def _arm_forced_exit(self) -> None:
        """Works without the event loop and the GIL."""
        self._told_to_end = time.monotonic()
        faulthandler.dump_traceback_later(END_SECONDS, exit=True)

    async def on_tick(self, counter: int) -> bool:
        self._services.vitals.lag.tick()
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        loop = asyncio.get_running_loop()
        # Takes the place of the loop's own descriptor for signals, by which `add_signal_handler` works.
        self._end_guard = EndGuard(END_SECONDS)
        signal.signal(signal.SIGHUP, lambda sig, frame: loop.is_closed() or loop.call_soon_threadsafe(self._hung_up))
        sys.setswitchinterval(SWITCH_SECONDS)
        self._services.vitals.workers = Workers()
        loop.set_default_executor(self._services.vitals.workers)
        loop.call_later(WARMED_AFTER_SECONDS, loop.run_in_executor, None, self._warm)
        # In a thread of its own, since other work may have taken all threads of the pool.
        guarding = threading.Thread(target=self._end_guard.start, name="guard of the end", daemon=True)
        loop.call_later(GUARDED_AFTER_SECONDS, guarding.start)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._services.ending.set()
        await super().shutdown(sockets)

    def _hung_up(self) -> None:
        """A closed terminal ends the gateway that it started; any other SIGHUP reloads."""
        if self._on_terminal and not sys.stderr.isatty():
            self.should_exit = True
            self._arm_forced_exit()
            return
        if self._certificate is not None:
            self._certificate.renew()
        if self._reloader is not None:
            self._reloading = asyncio.create_task(self._reloader.try_reload(), name="reload")

    def _warm(self) -> None:
        try:
            for format in self._formats:
                registry.warm(format)
        finally:
            # What exists now stays for good: a garbage collection that visits it costs more than many requests.
            gc.freeze()
            # By Python's own figure, 700 new objects, it would run after every few requests and find next to nothing.
            gc.set_threshold(10_000)
            gc.enable()

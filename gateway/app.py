"""The composition root: the only place where the parts are wired."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import Any

import uvicorn

from gateway.api.entry import API
from gateway.config import Config, ConfigError
from gateway.core import Gateway
from gateway.core.reload import Load, Reloader
from gateway.observe import logs
from gateway.services import Services
from normalizers import FormatSpec, registry

GRACE_SECONDS = 10


BACKGROUND: tuple[tuple[Callable[[Config], bool], str], ...] = (
    # A room may have been at work when the gateway ended.
    (lambda config: (config.state_dir / "rooms.open").exists(), "gateway.rooms.endpoints:resume"),
    (lambda config: config.ctx.enabled, "gateway.ctx.live:live"),
)
"""Runs beside the APIs from the start: whether a configuration wants it, and its factory, `(Services) ->` an async
context manager, imported only if wanted."""


PRUNES = ("gateway.api.responses.response_store:prune", "gateway.rooms.expiry:prune", "gateway.ctx.journal:prune")
"""What removes from the store what is too old; see `gateway.store.retention`."""


def build(config: Config, load: Load | None = None) -> API:
    """The ASGI application for a configuration. Its lifespan ends the engines that it started.

    load: reads the configuration anew; None: it stays as it is.
    """
    return _wired(config, load)[0]


def _wired(config: Config, load: Load | None) -> tuple[API, Services]:
    gateway = Gateway(config)
    reloader = Reloader(gateway, load) if load is not None else None
    services = Services(gateway, reloader, PRUNES)

    @asynccontextmanager
    async def background() -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(services.aclose)
            if reloader is not None:
                await stack.enter_async_context(_reloading(gateway, reloader))
            for wanted, factory in BACKGROUND:
                if wanted(config):
                    await stack.enter_async_context(_imported(factory)(services))
            yield

    return API(services, background), services


@asynccontextmanager
async def _reloading(gateway: Gateway, reloader: Reloader) -> AsyncIterator[None]:
    """The file is watched, as long as its `server.watch` says so."""
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


def _imported(name: str) -> Callable[[Services], Any]:
    module, _, attribute = name.partition(":")
    made: Callable[[Services], Any] = getattr(import_module(module), attribute)
    return made


def serve(config: Config, load: Load, sockets: list[socket.socket]) -> None:
    """Serves on listening sockets until SIGINT or SIGTERM, then lets answers in flight end, at most GRACE_SECONDS.

    SIGHUP reloads.
    """
    server = config.server
    app, services = _wired(config, load)
    settings = uvicorn.Config(
        app,
        # The lane knows no browsers.
        http="httptools" if server.cors_origins else "gateway.server.fast_protocol:FastProtocol",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    active = config.resolve(None)
    _Server(settings, services, [active.custom_format or active.tool_call_format]).run(sockets)


class _Server(uvicorn.Server):
    """Serves first, and then loads what the first call of a format would load, beside the loop."""

    def __init__(self, config: uvicorn.Config, services: Services, formats: list[str | FormatSpec]) -> None:
        super().__init__(config)
        self._services = services
        self._reloader = services.reloader
        self._formats = formats
        self._on_terminal = sys.stderr.isatty()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._hung_up)
        self._warming = asyncio.get_running_loop().run_in_executor(None, self._warm)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._services.ending.set()
        await super().shutdown(sockets)

    def _hung_up(self) -> None:
        """A terminal that closes ends what it started; everybody else who says SIGHUP wants a reload."""
        if self._on_terminal and not sys.stderr.isatty():
            self.should_exit = True
        elif self._reloader is not None:
            self._reloading = asyncio.create_task(_tried(self._reloader), name="reload")

    def _warm(self) -> None:
        try:
            for format in self._formats:
                registry.warm(format)
        finally:
            # What stands now stands for good: a collection that passes over it costs more than many requests.
            gc.freeze()
            gc.enable()


async def _tried(reloader: Reloader) -> None:
    with contextlib.suppress(ConfigError):  # told already
        await reloader.reload()

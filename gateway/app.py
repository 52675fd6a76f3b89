"""The composition root: the only place where the parts are wired."""

from __future__ import annotations

import asyncio
import gc
import os
import socket

import uvicorn

from gateway.api.app import API
from gateway.config import Config
from gateway.core import Gateway
from normalizers import FormatSpec, registry

GRACE_SECONDS = 10


def build(config: Config) -> API:
    """The ASGI application for a configuration. Its lifespan ends the engines that it started."""
    return API(Gateway(config))


def serve(config: Config) -> None:
    """Serves until SIGINT or SIGTERM, then lets answers in flight end, at most GRACE_SECONDS."""
    server = config.server
    settings = uvicorn.Config(
        build(config),
        host=server.host,
        port=server.port,
        uds=str(server.uds) if server.uds is not None else None,
        http="gateway.api.lane:LaneProtocol",
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    active = config.resolve(None)
    _Server(settings, [active.custom_format or active.tool_call_format]).run()


class _Server(uvicorn.Server):
    """Listens first, and then loads what the first call of a format would load, beside the loop."""

    def __init__(self, config: uvicorn.Config, formats: list[str | FormatSpec]) -> None:
        super().__init__(config)
        self._formats = formats

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.config.uds is not None:
            # uvicorn lets every user of the machine connect.
            os.chmod(self.config.uds, 0o600)
        self._warming = asyncio.get_running_loop().run_in_executor(None, self._warm)

    def _warm(self) -> None:
        try:
            for format in self._formats:
                registry.warm(format)
        finally:
            # What stands now stands for good: a collection that passes over it costs more than many requests.
            gc.freeze()
            gc.enable()

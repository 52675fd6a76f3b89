"""The composition root: the only place where the parts are wired."""

from __future__ import annotations

import uvicorn

from gateway.api.app import API
from gateway.config import Config
from gateway.core import Gateway
from normalizers import registry

GRACE_SECONDS = 10


def build(config: Config) -> API:
    """The ASGI application for a configuration. Its lifespan ends the engines that it started."""
    return API(Gateway(config))


def serve(config: Config) -> None:
    """Serves until SIGINT or SIGTERM, then lets answers in flight end, at most GRACE_SECONDS."""
    server = config.server
    registry.warm(config.models[config.active_model].tool_call_format)
    uvicorn.run(
        build(config),
        host=server.host,
        port=server.port,
        uds=str(server.uds) if server.uds is not None else None,
        http="gateway.api.lane:LaneProtocol",
        loop="auto",
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )

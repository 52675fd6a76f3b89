"""What several commands share: the configuration, and looking whether a gateway runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.config import Config, Server, cache, find

if TYPE_CHECKING:
    import httpx

PROBE_SECONDS = 0.5
"""How long a server may take to show that it is there."""


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="the configuration (default: see ctxgate --help)")


def configuration(args: argparse.Namespace) -> Config:
    return cache.load(args.config if args.config is not None else find())


def base_url(server: Server) -> str:
    """Where a client on this machine finds a gateway so configured."""
    if server.uds is not None:
        return "http://localhost"
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(server.host, server.host)  # noqa: S104
    return f"http://{f'[{host}]' if ':' in host else host}:{server.port}"


def transport(server: Server) -> httpx.HTTPTransport:
    import httpx

    return httpx.HTTPTransport(uds=str(server.uds) if server.uds is not None else None)


def headers(server: Server) -> dict[str, str]:
    return {"authorization": f"Bearer {server.api_keys[0].get_secret_value()}"} if server.api_keys else {}

"""What several commands share: the configuration, and looking whether a gateway runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.config import Config, Server, cache, find

if TYPE_CHECKING:
    import httpx

PROBE_SECONDS = 3.0
"""How long a server may take to show that it is there: where nobody listens, that is known at once."""


def add_config(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    told = "the configuration (default: see ctxgate --help)"
    parser.add_argument("--config", type=Path, metavar="FILE", default=default, help=told)


def add_actions(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    """The actions of a command; each takes `--config` behind it as well as before."""
    return parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=_ActionParser)


class _ActionParser(argparse.ArgumentParser):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # What stood before the action stays where nothing stands behind it.
        add_config(self, argparse.SUPPRESS)


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

"""The gateway that runs, for the commands that ask it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from gateway.cli.common import base_url, headers, transport
from gateway.config import ConfigError, Problem, Server, cache, find
from gateway.errors import CATEGORIES, GatewayError, ProviderInvalidResponse, ProviderUnavailable

SECONDS = 30.0
"""For an answer; a reload may have to wait for another one."""


def add_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", metavar="URL", help="where the gateway is (default: as the configuration says)")


class Running:
    """Asks the running gateway. Use it as a context manager."""

    def __init__(self, args: argparse.Namespace) -> None:
        import httpx

        server = _server(args)
        self.url: str = args.url or base_url(server)
        over = httpx.HTTPTransport() if args.url else transport(server)
        self._client = httpx.Client(base_url=self.url, transport=over, headers=headers(server), timeout=SECONDS)

    def ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        """The JSON that it answers. Raises ConfigError for a configuration that it refuses, else a GatewayError."""
        import httpx

        try:
            response = self._client.request(method, path, content=body)
        except httpx.HTTPError as error:
            raise ProviderUnavailable(f"no gateway answers at {self.url} ({error}); start it: ctxgate serve") from None
        try:
            answer = response.json()
        except ValueError:
            raise ProviderInvalidResponse(f"what answers at {self.url} is no ctxgate") from None
        if response.status_code < 400:
            return answer
        told = answer.get("error", {}) if isinstance(answer, dict) else {}
        message = str(told.get("message", f"{self.url} answered {response.status_code}"))
        if told.get("code") == "invalid_configuration":
            raise Refused(message, told.get("problems", []))
        known: dict[Any, type[GatewayError]] = {**CATEGORIES}
        raise known.get(told.get("category"), ProviderInvalidResponse)(message, code=told.get("code"))

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()


class Refused(ConfigError):
    """The gateway's own words about a configuration, which it takes for the text of its own file."""

    def __init__(self, message: str, problems: list[dict[str, Any]]) -> None:
        super().__init__(())
        self.args = (message,)
        self._told = problems

    def of(self, file: Path) -> ConfigError:
        """The same of the file whose text it was."""
        return ConfigError(
            tuple(Problem(each["message"], each["cure"], file, each["line"], each["column"]) for each in self._told)
        )


def _server(args: argparse.Namespace) -> Server:
    """Of a file with mistakes, what can be read of it: the gateway runs with an earlier one."""
    path = args.config if args.config is not None else find()
    try:
        return cache.load(path).server
    except ConfigError:
        from gateway.config.loader import server_of

        return server_of(path, os.environ)

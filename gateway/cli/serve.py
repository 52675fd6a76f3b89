"""`ctxgate serve`"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING

import click
from msgspec import Struct
from msgspec.structs import replace

from gateway.cli.client import base_url
from gateway.cli.listening import listening
from gateway.cli.options import FILE, Command, config_option, configuration
from gateway.cli.text import say
from gateway.config import Config, Model, Server, load
from gateway.config.hidden import hider
from gateway.errors import ProviderInvalidRequest, ProviderUnavailable
from gateway.feature import offered
from gateway.observe.logs import Formatter
from gateway.server.keys import FILE as KEYS
from gateway.server.keys import KeyFile

if TYPE_CHECKING:
    from gateway.server.tls import Certificate

EXAMPLES = """\
examples:
  ctxgate serve
  ctxgate serve --port 8000
  ctxgate serve --model lfm25-1.2b --pull
  ctxgate serve --uds /run/user/1000/ctxgate.sock
  CTXGATE_KEY=... ctxgate serve --host 0.0.0.0      with the key that server.api_keys of config.yaml names
"""


class Overrides(Struct, frozen=True):
    """Values of the command line that replace the file's; None keeps the file's."""

    host: str | None
    port: int | None
    uds: Path | None
    model: str | None
    tls: bool = True
    """False: plain HTTP, whatever the file says."""

    def apply(self, config: Config) -> Config:
        """Raises ProviderInvalidRequest for an address without keys that other machines can reach."""
        config = replace(config, server=self._server(config.server, KeyFile(config.state_dir / KEYS)))
        if self.model is not None:
            config = replace(config, active_model=config.resolve(self.model).name)
        return config

    def _server(self, server: Server, keys: KeyFile) -> Server:
        if not self.tls:
            server = replace(server, tls=None)
        if self.uds is not None:
            if self.host is not None or self.port is not None:
                raise ProviderInvalidRequest("--uds excludes --host and --port: a Unix socket has neither")
            return replace(server, uds=self.uds.absolute())
        if self.host is not None or self.port is not None:
            host = server.host if self.host is None else self.host
            server = replace(server, uds=None, host=host, port=server.port if self.port is None else self.port)
        if server.unsafe() and (problem := server.unsafe(keys=bool(keys.read()))):
            cure = (
                "make one with `ctxgate keys add`, or set the variable that server.api_keys of config.yaml names "
                "(CTXGATE_KEY), or listen on 127.0.0.1"
            )
            raise ProviderInvalidRequest(f"{problem}: {cure}")
        return server


@click.command(cls=Command, epilog=EXAMPLES)
@config_option
@click.option("--host", metavar="ADDRESS", help="Address to listen on instead of server.host.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="Port to listen on instead of server.port.")
@click.option("--uds", type=FILE, metavar="PATH", help="Unix socket to listen on instead of host and port.")
@click.option("--no-tls", "tls", is_flag=True, default=True, flag_value=False, help="Plain HTTP despite server.tls.")
@click.option("--model", metavar="NAME", help="The active model, instead of active_model in the file.")
@click.option("--pull", is_flag=True, help="Fetch the active model's weights first if they are missing.")
@click.option(
    "--env-file",
    type=FILE,
    metavar="FILE",
    help="File of variables, as NAME=value lines; only its owner may be able to read it.",
)
@click.option("--offline-model", metavar="NAME", help="The active model to use if --pull finds no network.")
def serve(
    config: Path | None,
    host: str | None,
    port: int | None,
    uds: Path | None,
    tls: bool,
    model: str | None,
    pull: bool,
    env_file: Path | None,
    offline_model: str | None,
) -> None:
    """Serves the models of config.yaml to OpenAI clients, until Ctrl-C or SIGTERM.

    Where there is no configuration, writes the default one first (see `ctxgate init`), and fetches its small model.
    """
    # The start makes no garbage either. The server turns the collector on again.
    gc.disable()
    if env_file is not None:
        from gateway.config.env_file import load as load_env

        load_env(env_file, os.environ)
    overrides = Overrides(host, port, uds, model, tls)
    loaded = overrides.apply(configuration(config, create=True))
    named, stand_in = loaded.active_model, None
    first = not pull and model is None and _first(loaded)
    if first:
        from gateway.config.default import OFFLINE_MODEL

        pull, offline_model = True, offline_model or OFFLINE_MODEL
    if pull:
        loaded = _with_weights(loaded, offline_model)
        stand_in = loaded.active_model if loaded.active_model != named else None
    certificate = _certificate(loaded.server)
    sockets = listening(loaded.server)
    _announce(loaded, sockets[0])
    if first:
        _invite(loaded, sockets[0])

    from gateway.app import serve as run

    run(loaded, _reloader(loaded.source, overrides, named, stand_in), sockets, certificate)


def _reloader(source: Path, overrides: Overrides, named: str, stand_in: str | None) -> Callable[[str | None], Config]:
    """Loads the file again, or a text in its place, and applies what the command line overrides."""

    def reload(text: str | None) -> Config:
        again = overrides.apply(load(source, text=text))
        if (
            stand_in is not None
            and stand_in in again.models
            and again.active_model == named
            and not _installed(again.models[named])
        ):
            again = replace(again, active_model=stand_in)
        return again

    return reload


def _first(config: Config) -> bool:
    """Whether the file is still as `ctxgate init` wrote it and the weights are missing: the only unrequested download.

    Whoever names another model decides about its gigabytes.
    """
    if _installed(config.resolve(None)):
        return False
    from gateway.config.default import untouched

    return untouched(config.source)


def _installed(model: Model) -> bool:
    return model.path is None or model.path.exists()


def _with_weights(config: Config, offline_model: str | None) -> Config:
    """Fetches the active model's weights if they are missing. Without a network, makes `offline_model` the active one.

    Raises GatewayError if neither is possible.
    """
    model = config.resolve(None)
    if model.pull is None or model.path is None or model.path.exists():
        return config
    try:
        fetch: Callable[[Model], object] = offered("fetch_weights")
        fetch(model)
    except ProviderUnavailable as error:
        if offline_model is None or error.code != "offline":
            raise
        stand_in = config.resolve(offline_model)
        _tell(config, str(error))
        _tell(config, f"until then {stand_in.name} serves: {stand_in.display_name}")
        return replace(config, active_model=stand_in.name)
    return config


def _certificate(server: Server) -> Certificate | None:
    """None if the gateway serves plain HTTP. Raises ProviderInvalidRequest."""
    if server.https is None:
        return None
    from gateway.server.tls import Certificate

    return Certificate(server.https.cert, server.https.key)


def _where(server: Server, listens: socket) -> str:
    """The base URL for OpenAI's clients."""
    if server.uds is not None:
        return f"unix:{server.uds}"
    return f"{base_url(replace(server, port=listens.getsockname()[1]))}/v1"


def _invite(config: Config, listens: socket) -> None:
    """The lines that a client needs, for a person who starts ctxgate for the first time."""
    where = _where(config.server, listens)
    key = "$CTXGATE_KEY" if config.server.api_keys else "unused"
    _tell(config, f"for a client: OPENAI_BASE_URL={where} OPENAI_API_KEY={key}")
    _tell(config, "to try it here, in another terminal: ctxgate chat")
    if config.server.page and config.server.uds is None:
        _tell(config, f"to see it at work, in a browser: {where.removesuffix('v1')}")


def _announce(config: Config, listens: socket) -> None:
    server, model = config.server, config.resolve(None)
    _tell(config, f"{_where(server, listens)}  active model {model.name} ({model.runtime})  {config.source}")
    if model.path is not None and not model.path.exists():
        cure = f"fetch it: ctxgate pull {model.name}" if model.pull is not None else f"put it at {model.path}"
        _tell(config, f"{model.name} isn't on this machine yet; {cure}")


def _tell(config: Config, message: str) -> None:
    """In the form of the log's lines, whatever its level."""
    record = logging.LogRecord("ctxgate", logging.INFO, "", 0, message, None, None)
    say(Formatter(config.log, hider(config.secrets)).format(record), file=sys.stderr)

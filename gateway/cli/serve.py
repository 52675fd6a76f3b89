"""`ctxgate serve`"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from socket import socket

import click
from msgspec.structs import replace

from gateway.cli.client import base_url
from gateway.cli.listening import listening
from gateway.cli.options import FILE, Command, config_option, configuration
from gateway.cli.pull import fetch
from gateway.config import Config, Model, Server, cache, load
from gateway.errors import ProviderInvalidRequest, ProviderUnavailable
from gateway.server.keys import FILE as KEYS
from gateway.server.keys import KeyFile

EXAMPLES = """\
examples:
  ctxgate serve
  ctxgate serve --port 8000
  ctxgate serve --model lfm25-1.2b --pull
  ctxgate serve --uds /run/user/1000/ctxgate.sock
  CTXGATE_KEY=... ctxgate serve --host 0.0.0.0      with the key that server.api_keys of config.yaml names
"""


@dataclass(frozen=True)
class Overrides:
    """What the command line puts in place of the file's values; None keeps the file's."""

    host: str | None
    port: int | None
    uds: Path | None
    model: str | None

    def apply(self, config: Config) -> Config:
        """Raises ProviderInvalidRequest for an address without keys that other machines can reach."""
        config = replace(config, server=self._server(config.server, KeyFile(config.state_dir / KEYS)))
        if self.model is not None:
            config = replace(config, active_model=config.resolve(self.model).name)
        return config

    def _server(self, server: Server, keys: KeyFile) -> Server:
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
@click.option("--model", metavar="NAME", help="The active model instead of active_model.")
@click.option("--pull", is_flag=True, help="Fetch its weights first if they are missing.")
@click.option("--offline-model", metavar="NAME", help="The active model if --pull finds no network.")
def serve(
    config: Path | None,
    host: str | None,
    port: int | None,
    uds: Path | None,
    model: str | None,
    pull: bool,
    offline_model: str | None,
) -> None:
    """Serves the models of config.yaml to OpenAI clients, until Ctrl-C or SIGTERM."""
    # The start makes no garbage, and looking for some takes a tenth of it. The server turns the collector on again.
    gc.disable()
    overrides = Overrides(host, port, uds, model)
    loaded = overrides.apply(configuration(config))
    named, stand_in = loaded.active_model, None
    if pull:
        loaded = _with_weights(loaded, offline_model)
        stand_in = loaded.active_model if loaded.active_model != named else None
    sockets = listening(loaded.server)
    _announce(loaded, sockets[0])

    from gateway.app import serve as run

    run(loaded, _reloader(loaded.source, overrides, named, stand_in), sockets)


def _reloader(source: Path, overrides: Overrides, named: str, stand_in: str | None) -> Callable[[str | None], Config]:
    """Loads the file again, or a text in its place, and applies what the command line overrides."""

    def reload(text: str | None) -> Config:
        # Without a text through the cache, so that the next start finds the edited file there.
        again = overrides.apply(cache.load(source) if text is None else load(source, text=text))
        if (
            stand_in is not None
            and stand_in in again.models
            and again.active_model == named
            and not _installed(again.models[named])
        ):
            again = replace(again, active_model=stand_in)
        return again

    return reload


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
        fetch(model)
    except ProviderUnavailable as error:
        if offline_model is None or error.code != "offline":
            raise
        stand_in = config.resolve(offline_model)
        print(f"ctxgate: {error}", file=sys.stderr)
        print(f"ctxgate: until then {stand_in.name} serves: {stand_in.display_name}", file=sys.stderr)
        return replace(config, active_model=stand_in.name)
    return config


def _announce(config: Config, listens: socket) -> None:
    server, model = config.server, config.resolve(None)
    if server.uds is None:
        server = replace(server, port=listens.getsockname()[1])
    where = f"unix:{server.uds}" if server.uds is not None else f"{base_url(server)}/v1"
    print(f"ctxgate: {where}  active model {model.name} ({model.runtime})  {config.source}", file=sys.stderr)
    if model.path is not None and not model.path.exists():
        cure = f"fetch it: ctxgate pull {model.name}" if model.pull is not None else f"put it at {model.path}"
        print(f"ctxgate: {model.name} isn't on this machine yet; {cure}", file=sys.stderr)

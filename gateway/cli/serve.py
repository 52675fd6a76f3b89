"""`ctxgate serve`"""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path
from socket import socket

from msgspec.structs import replace

from gateway.cli.common import base_url, configuration
from gateway.cli.listening import listening
from gateway.cli.pull import fetch
from gateway.config import Config, Model, Server, cache, load
from gateway.errors import ProviderInvalidRequest, ProviderUnavailable
from gateway.server.keys import FILE as KEYS
from gateway.server.keys import KeyFile

DESCRIPTION = "Serves the models of config.yaml to OpenAI clients, until Ctrl-C or SIGTERM."
EXAMPLES = """\
examples:
  ctxgate serve
  ctxgate serve --port 8000
  ctxgate serve --model lfm25-1.2b --pull
  ctxgate serve --uds /run/user/1000/ctxgate.sock
  CTXGATE_KEY=... ctxgate serve --host 0.0.0.0      as server.api_keys of config.yaml has it
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address to listen on, in place of server.host")
    parser.add_argument("--port", type=_port, metavar="N", help="port to listen on, in place of server.port")
    parser.add_argument("--uds", type=Path, metavar="PATH", help="Unix socket to listen on, in place of host and port")
    parser.add_argument("--model", metavar="NAME", help="the active model, in place of active_model")
    parser.add_argument("--pull", action="store_true", help="fetch its weights first, where they are missing")
    parser.add_argument("--offline-model", metavar="NAME", help="the active model where --pull finds no network")


def run(args: argparse.Namespace) -> int:
    # What a start makes is no garbage: looking for some takes a tenth of it. The server turns it on again.
    gc.disable()
    config = _overridden(configuration(args), args)
    named, stand_in = config.active_model, None
    if args.pull:
        config = _with_weights(config, args.offline_model)
        stand_in = config.active_model if config.active_model != named else None
    sockets = listening(config.server)
    _announce(config, sockets[0])

    def reload(text: str | None) -> Config:
        # What an edit while it runs has made of the file is kept for the next start, too.
        again = _overridden(cache.load(config.source) if text is None else load(config.source, text=text), args)
        if (
            stand_in is not None
            and stand_in in again.models
            and again.active_model == named
            and not _installed(again.models[named])
        ):
            again = replace(again, active_model=stand_in)
        return again

    from gateway.app import serve

    serve(config, reload, sockets)
    return 0


def _overridden(config: Config, args: argparse.Namespace) -> Config:
    """What the command line says goes before the file."""
    config = replace(config, server=_server(config.server, args, KeyFile(config.state_dir / KEYS)))
    if args.model is not None:
        config = replace(config, active_model=config.resolve(args.model).name)
    return config


def _installed(model: Model) -> bool:
    return model.path is None or model.path.exists()


def _server(server: Server, args: argparse.Namespace, keys: KeyFile) -> Server:
    if args.uds is not None:
        if args.host is not None or args.port is not None:
            raise ProviderInvalidRequest("--uds stands alone: a Unix socket has no host and no port")
        return replace(server, uds=args.uds.absolute())
    if args.host is not None or args.port is not None:
        host = server.host if args.host is None else args.host
        server = replace(server, uds=None, host=host, port=server.port if args.port is None else args.port)
    if server.unsafe() and (problem := server.unsafe(keys=bool(keys.read()))):
        cure = (
            "make one with `ctxgate keys add`, or set the variable that server.api_keys of config.yaml names "
            "(CTXGATE_KEY), or listen on 127.0.0.1"
        )
        raise ProviderInvalidRequest(f"{problem}: {cure}")
    return server


def _with_weights(config: Config, offline_model: str | None) -> Config:
    """The active model's weights are on this machine afterwards, or `offline_model` is the active one."""
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


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text} isn't a port: 0 to 65535")
    return int(text)

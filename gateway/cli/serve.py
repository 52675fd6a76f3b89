"""`ctxgate serve`"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from gateway.cli.common import base_url, configuration
from gateway.config import Config, Server
from gateway.errors import ProviderInvalidRequest

HELP = "serve the models of config.yaml"
DESCRIPTION = "Serves the models of config.yaml to OpenAI clients, until Ctrl-C or SIGTERM."
EXAMPLES = """\
examples:
  ctxgate serve
  ctxgate serve --port 8000
  ctxgate serve --uds /run/user/1000/ctxgate.sock
  CTXGATE_KEY=... ctxgate serve --host 0.0.0.0     with api_keys: ["${CTXGATE_KEY}"] in config.yaml
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address to listen on, in place of server.host")
    parser.add_argument("--port", type=_port, metavar="N", help="port to listen on, in place of server.port")
    parser.add_argument("--uds", type=Path, metavar="PATH", help="Unix socket to listen on, in place of host and port")


def run(args: argparse.Namespace) -> int:
    config = configuration(args)
    config = replace(config, server=_server(config.server, args))
    _announce(config)

    from gateway.app import serve

    serve(config)
    return 0


def _server(server: Server, args: argparse.Namespace) -> Server:
    if args.uds is not None:
        if args.host is not None or args.port is not None:
            raise ProviderInvalidRequest("--uds stands alone: a Unix socket has no host and no port")
        return replace(server, uds=args.uds.absolute())
    if args.host is not None or args.port is not None:
        host = server.host if args.host is None else args.host
        server = replace(server, uds=None, host=host, port=server.port if args.port is None else args.port)
    if problem := server.unsafe():
        raise ProviderInvalidRequest(f"{problem}: add api_keys: to server: in config.yaml, or listen on 127.0.0.1")
    return server


def _announce(config: Config) -> None:
    server, model = config.server, config.resolve(None)
    where = f"unix:{server.uds}" if server.uds is not None else f"{base_url(server)}/v1"
    print(f"ctxgate: {where}  active model {model.name} ({model.runtime})  {config.source}", file=sys.stderr)
    if model.path is not None and not model.path.exists():
        cure = f"fetch it: ctxgate pull {model.name}" if model.pull is not None else f"put it at {model.path}"
        print(f"ctxgate: {model.name} isn't on this machine yet; {cure}", file=sys.stderr)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text} isn't a port: 0 to 65535")
    return int(text)

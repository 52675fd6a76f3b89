"""Which command was asked for, and what its outcome means to the shell."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol, cast

from gateway import __version__
from gateway.cli.broken_pipe import while_read
from gateway.cli.common import add_config
from gateway.config import ConfigError
from gateway.errors import CATEGORIES, GatewayError, InternalError


class Command(Protocol):
    """What a command's module has."""

    DESCRIPTION: str
    EXAMPLES: str

    def configure(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int:
        """The exit code. Raises ConfigError and GatewayError."""
        ...


COMMANDS = {
    "serve": ("gateway.cli.serve", "serve the models of config.yaml"),
    "check": ("gateway.cli.check", "is config.yaml right?"),
    "doctor": ("gateway.cli.doctor", "look over all that serving needs; try what a client would ask"),
    "plan": ("gateway.cli.plan", "show what a changed config.yaml would change"),
    "status": ("gateway.cli.status", "show what the running gateway does"),
    "logs": ("gateway.cli.logs", "show what a model's engine has written"),
    "replay": ("gateway.cli.replay", "read a recorded answer as another tool-call format"),
    "models": ("gateway.cli.models", "list the models: what is installed and what runs"),
    "formats": ("gateway.cli.formats", "list the tool-call formats; say which one a model writes"),
    "pull": ("gateway.cli.pull", "fetch a model's weights"),
    "swap": ("gateway.cli.swap", "make another model the active one, if it calls tools no worse"),
    "chat": ("gateway.cli.chat", "try a model in the terminal"),
    "ctx": ("gateway.cli.ctx", "models as files: executable, with sockets and control files"),
    "room": ("gateway.cli.room", "rent a room, talk to it, watch it, release it"),
    "records": ("gateway.cli.records", "define the models of records that rooms work on"),
    "keys": ("gateway.cli.keys", "make, list and revoke the keys of callers"),
}
"""A command's module, and what it is for. Only the module of the command that was asked for is imported."""

INTERRUPTED = 130

EPILOG = """\
examples:
  ctxgate pull smollm2-135m-instruct   fetch the default model, 98 MB
  ctxgate serve                        then point any OpenAI client at http://127.0.0.1:4000/v1
  ctxgate chat                         try the active model here
  ctxgate check                        is config.yaml right?

The configuration is _models/config.yaml of the working folder or a folder above it,
else ctxgate/config.yaml in the user's configuration folder (~/.config).

exit codes:
"""


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(
        prog="ctxgate",
        description="One OpenAI-compatible endpoint on localhost for the models on this machine.",
        epilog=EPILOG + _exit_codes(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"ctxgate {__version__}")
    commands = root.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_CommandParser)
    for name, (module, purpose) in COMMANDS.items():
        commands.add_parser(name, help=purpose, module=module)
    return root


class _CommandParser(argparse.ArgumentParser):
    """The parser of one command, which learns its arguments when it is to read some."""

    def __init__(self, *, module: str | None = None, **settings: Any) -> None:
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**settings)
        self._module = module

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        if self._module is not None:
            command = cast(Command, import_module(self._module))
            self._module = None
            self.description, self.epilog = command.DESCRIPTION, command.EXAMPLES
            self.set_defaults(run=command.run)
            add_config(self)
            command.configure(self)
        return super().parse_known_args(args, namespace)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    return while_read(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    args = parser().parse_args(argv)
    try:
        return cast(int, args.run(args))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except GatewayError as error:
        print(f"ctxgate: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        raise  # which is no bug
    except Exception:
        logging.basicConfig(format="ctxgate: %(message)s")
        logging.exception("this is a bug of ctxgate; please report it")
        return InternalError.exit_code


def _exit_codes() -> str:
    """From the error table: the shell sees the categories that clients see."""
    by_code: dict[int, list[str]] = {}
    for name, error in CATEGORIES.items():
        by_code.setdefault(error.exit_code, []).append(name.removeprefix("provider_").replace("_", " "))
    by_code[InternalError.exit_code] = ["a bug of ctxgate"]
    rows = {0: "all is well", INTERRUPTED: "interrupted"}
    rows |= {code: ", ".join(names) for code, names in by_code.items()}
    rows[ConfigError.exit_code] = "wrong configuration or command line, " + rows[ConfigError.exit_code]
    return "".join(f"  {code:<4} {text}\n" for code, text in sorted(rows.items()))

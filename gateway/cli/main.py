"""`ctxgate`: finds the command, runs it, and turns its outcome into an exit code."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import cast

import click

from gateway import __version__
from gateway.cli.ending import exit_quietly
from gateway.cli.options import Group
from gateway.cli.text import say
from gateway.feature import imported, installed

OWN = {
    "serve": ("gateway.cli.serve:serve", "Serve the models of config.yaml."),
    "init": ("gateway.cli.init:init", "Write the default config.yaml."),
    "check": ("gateway.cli.check:check", "Check config.yaml."),
}
"""The function and the purpose of each command; `commands` adds those of the features. Only the module of the command
that runs is imported."""

INTERRUPTED = 130

EPILOG = """\
examples:
  ctxgate pull smollm2-135m-instruct   fetch the default model, 98 MB, as the first `serve` does
  ctxgate serve                        then point any OpenAI client at http://127.0.0.1:4000/v1
  ctxgate chat                         try the active model here
  ctxgate launch claude                start a coding agent with a model that suffices
  ctxgate check                        check config.yaml

The configuration is _models/config.yaml in the working folder or in a folder above it,
else ctxgate/config.yaml in the user's configuration folder (~/.config).
If there is none, `ctxgate serve` and `ctxgate init` write the latter; other commands use the default.

exit codes:
"""


def commands() -> dict[str, tuple[str, str]]:
    """All commands, in the order of the help."""
    found = dict(OWN)
    for feature in installed():
        for name, command in feature.commands.items():
            found.setdefault(name, command)
    return found


class Commands(Group):
    """The commands as a group."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = OWN.get(cmd_name) or commands().get(cmd_name)
        if found is None:
            return None
        command = cast(click.Command, imported(found[0]))
        gc.enable()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in OWN and args[0] not in commands():
            raise click.NoSuchCommand(args[0], possibilities=commands(), ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """From the table: help of `ctxgate` itself imports no command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, purpose) for name, (_, purpose) in commands().items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        formatter.write(EPILOG + _exit_codes())


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="ctxgate %(version)s")
def root() -> None:
    """One OpenAI-compatible endpoint on localhost for the models on this machine."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line, sys.argv by default. Returns the exit code."""
    return exit_quietly(lambda: _main(list(sys.argv[1:] if argv is None else argv)))


def _main(argv: list[str]) -> int:
    # Not click's own `main`: it exits with 1 where stdout is closed or Ctrl-C is pressed.
    color = False if os.environ.get("NO_COLOR") else None
    try:
        with root.make_context("ctxgate", argv, color=color) as context:
            return cast("int | None", root.invoke(context)) or 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        # A tool's message may be a server's. Usage errors, with the command's usage, are click's own.
        error.show() if isinstance(error, click.UsageError) else say(
            f"Error: {error.format_message()}", file=sys.stderr
        )
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        from gateway.config import ConfigError
        from gateway.errors import GatewayError

        if not isinstance(error, ConfigError | GatewayError):
            raise
        say(error if isinstance(error, ConfigError) else f"ctxgate: {error}", file=sys.stderr)
        return error.exit_code


def _exit_codes() -> str:
    """From the error table: the shell sees the categories that clients see."""
    from gateway.config import ConfigError
    from gateway.errors import CATEGORIES, InternalError

    by_code: dict[int, list[str]] = {}
    for name, error in CATEGORIES.items():
        by_code.setdefault(error.exit_code, []).append(name.removeprefix("provider_").replace("_", " "))
    by_code[InternalError.exit_code] = ["a bug of ctxgate"]
    rows = {0: "success", INTERRUPTED: "interrupted"}
    rows |= {code: ", ".join(names) for code, names in by_code.items()}
    rows[ConfigError.exit_code] = "wrong configuration or command line, " + rows[ConfigError.exit_code]
    return "".join(f"  {code:<4} {text}\n" for code, text in sorted(rows.items()))

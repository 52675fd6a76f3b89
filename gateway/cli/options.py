"""How commands look: the layout of their help, and the options that several of them take."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from gateway.cli.text import say

if TYPE_CHECKING:
    from gateway.config import Config

FILE = click.Path(path_type=Path)


class Command(click.Command):
    """A command whose epilog, its examples, keeps its line breaks."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.epilog:
            formatter.write_paragraph()
            formatter.write(self.epilog)


class Group(Command, click.Group):
    """A command with actions, each of which takes the options of its group too."""

    command_class = Command


class Text(click.types.StringParamType):
    """Words to a model or a tool: they are in UTF-8, whatever the locale."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return os.fsencode(value).decode("utf-8", "replace")


class Finite(click.FloatRange):
    """A number in a range. Not a number, nan, would be in every one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not math.isfinite(found := super().convert(value, param, ctx)):
            self.fail(f"{value} isn't a finite number.", param, ctx)
        return found


def _own_or_parents(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """The value that stands nearest to the action: behind it, or else before it."""
    if value is not None or ctx.parent is None:
        return value
    return ctx.parent.params.get(param.name or "")


def _url(text: str) -> str:
    _ = urlsplit(text).port  # raises ValueError
    return text


config_option = click.option(
    "--config",
    type=FILE,
    metavar="FILE",
    callback=_own_or_parents,
    help="The configuration (default: see ctxgate --help).",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
url_option = click.option("--url", type=_url, metavar="URL", help="Address of the gateway (default: as configured).")
port_option = click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="Its port on this machine.")


def configuration(file: Path | None, *, create: bool = False) -> Config:
    """Loads `file`, or the configuration found from the working folder, or the default one.

    create: writes the default one if there is no other. Raises ConfigError.
    """
    from gateway.config import find, load
    from gateway.config.loader import NoConfig

    try:
        return load(file if file is not None else find())
    except NoConfig:
        from gateway.config import default

        place = default.place()
        if create:
            from gateway.cli.default_config import written

            written()
            return load(place)
        say(f"ctxgate: no configuration yet, so this is the default; `ctxgate init` writes {place}", file=sys.stderr)
        return default.load()

"""`ctxgate load` and `ctxgate unload`"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from gateway.cli.client import ANSWER_SECONDS, RunningGateway
from gateway.cli.options import Command, config_option, configuration, url_option
from gateway.cli.text import say

LOAD_EXAMPLES = """\
examples:
  ctxgate load                   the active model
  ctxgate load qwen3-4b
"""
UNLOAD_EXAMPLES = """\
examples:
  ctxgate unload qwen3-4b
"""


@click.command(cls=Command, epilog=LOAD_EXAMPLES)
@config_option
@url_option
@click.argument("name", required=False, metavar="[NAME]", help="A model of config.yaml (default: the active one).")
def load(config: Path | None, url: str | None, name: str | None) -> None:
    """Loads a model into memory, in the running gateway, and returns once it answers."""
    loaded = configuration(config)
    model = loaded.resolve(name)
    # It may wait for memory before it starts.
    bound = loaded.engines.queue_timeout_seconds + model.engine.startup_timeout_seconds
    answer = _ask(config, url, model.name, "load", bound)
    seconds = answer.get("load_seconds")
    say(f"{model.name} is loaded" + (f": it took {seconds:.1f} s" if seconds else ""))


@click.command(cls=Command, epilog=UNLOAD_EXAMPLES)
@config_option
@url_option
@click.argument("name", metavar="NAME", help="A model of config.yaml.")
def unload(config: Path | None, url: str | None, name: str) -> None:
    """Unloads a model from memory, even a pinned one, once its answers in flight are complete.

    The next request loads it again.
    """
    loaded = configuration(config)
    model = loaded.resolve(name)
    answer = _ask(config, url, model.name, "unload", loaded.engines.drain_timeout_seconds)
    again = ", but a request waits and loads it again" if answer.get("state") == "starting" else ""
    say(f"{model.name} is unloaded{again}")


def _ask(config: Path | None, url: str | None, name: str, what: str, seconds: float) -> dict[str, Any]:
    from rich.console import Console

    console = Console(stderr=True)
    with RunningGateway(config, url) as gateway, console.status(f"{what} {name}") if sys.stderr.isatty() else console:
        answer = gateway.ask("POST", f"/v1/models/{quote(name)}/{what}", seconds=seconds + ANSWER_SECONDS)
    return answer if isinstance(answer, dict) else {}

"""`ctxgate logs`"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import NoReturn

import click

from gateway.cli.options import Command, config_option, configuration
from gateway.cli.text import say
from gateway.engines.logfile import last_lines, log_path, rotated

EXAMPLES = """\
examples:
  ctxgate logs                     the last 100 lines of the active model's engine
  ctxgate logs qwen2.5-32b -n 20   20 lines of another model's
  ctxgate logs -f                  and all new ones, until Ctrl-C
"""

POLL_SECONDS = 0.25


@click.command(cls=Command, epilog=EXAMPLES)
@config_option
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), default=100, metavar="N", help="Number of lines (default: 100)."
)
@click.option("-f", "--follow", is_flag=True, help="Print new lines as they are written.")
@click.argument("model", required=False, metavar="[MODEL]", help="A model of config.yaml (default: the active one).")
def logs(config: Path | None, lines: int, follow: bool, model: str | None) -> None:
    """Shows the output of a model's engine, running or not. Needs no running gateway."""
    loaded = configuration(config)
    path = log_path(loaded.state_dir, loaded.resolve(model).name)
    if follow:
        _follow(path, lines)
    for line in last_lines(path, lines):
        say(line)
    if not path.exists():
        say(f"ctxgate: no engine of {path.stem} has written anything yet ({path})", file=sys.stderr)


def _follow(path: Path, lines: int) -> NoReturn:
    """Prints the last `lines` of the log and everything appended later, across rotations, until Ctrl-C."""
    before = rotated(path).read_text("utf-8", "replace") if rotated(path).exists() else ""
    shown = False
    while True:
        if path.exists():
            with path.open(encoding="utf-8", errors="replace") as file:
                if not shown:
                    begun = (before + file.read()).splitlines(keepends=True)
                    say("".join(begun[len(begun) - min(lines, len(begun)) :]), end="")
                    shown = True
                replaced = False
                while not replaced:
                    # Checked before the read, so that the last lines of a replaced file are read too.
                    replaced = not path.exists() or path.stat().st_ino != os.fstat(file.fileno()).st_ino
                    say(file.read(), end="", flush=True)
                    if not replaced:
                        time.sleep(POLL_SECONDS)
        else:
            time.sleep(POLL_SECONDS)

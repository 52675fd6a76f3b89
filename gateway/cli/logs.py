"""`ctxgate logs`"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

from gateway.cli.common import configuration
from gateway.engines.logfile import last_lines, log_path, rotated

DESCRIPTION = "Shows what a model's engine has written, also after it has ended. Needs no running gateway."
EXAMPLES = """\
examples:
  ctxgate logs                     the active model's engine: the last 100 lines
  ctxgate logs qwen2.5-32b -n 20   fewer of another's
  ctxgate logs -f                  and what it writes from now on, until Ctrl-C
"""

POLL_SECONDS = 0.25


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help="name of a model (default: the active one)")
    parser.add_argument("-n", "--lines", type=_count, default=100, metavar="N", help="how many lines (default: 100)")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what is written")


def run(args: argparse.Namespace) -> int:
    config = configuration(args)
    path = log_path(config.state_dir, config.resolve(args.model).name)
    if args.follow:
        follow(path, args.lines)
    for line in last_lines(path, args.lines):
        print(line)
    if not path.exists():
        print(f"ctxgate: no engine of {path.stem} has written anything yet ({path})", file=sys.stderr)
    return 0


def follow(path: Path, lines: int) -> NoReturn:
    """Prints the last `lines` of the log, and what is appended, also after the file was replaced, until Ctrl-C."""
    before = rotated(path).read_text("utf-8", "replace") if rotated(path).exists() else ""
    shown = False
    while True:
        if path.exists():
            with path.open(encoding="utf-8", errors="replace") as file:
                if not shown:
                    begun = (before + file.read()).splitlines(keepends=True)
                    sys.stdout.write("".join(begun[len(begun) - min(lines, len(begun)) :]))
                    shown = True
                replaced = False
                while not replaced:
                    # Looked at before it is read: what came last is read, too.
                    replaced = not path.exists() or path.stat().st_ino != os.fstat(file.fileno()).st_ino
                    sys.stdout.write(file.read())
                    sys.stdout.flush()
                    if not replaced:
                        time.sleep(POLL_SECONDS)
        else:
            time.sleep(POLL_SECONDS)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} isn't a number of lines")
    return int(text)

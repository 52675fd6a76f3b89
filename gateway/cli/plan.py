"""`ctxgate plan`"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from gateway.cli.running import Refused, Running, add_url
from gateway.config import ConfigError, Problem

CHANGES = 3

DESCRIPTION = """\
Shows what the running gateway would change if it read config.yaml, or another FILE in its place: which engines go on,
which are ended and started anew, what needs a restart of the gateway. Nothing is changed.
"""
EXAMPLES = f"""\
examples:
  ctxgate plan                     config.yaml as it is now
  ctxgate plan edited.yaml && mv edited.yaml _models/config.yaml

exit codes:
  0    nothing would change
  {CHANGES}    something would
  2    the file has mistakes: they are shown
  69   no gateway runs
"""

EFFECTS = {
    "added": "added",
    "removed": "removed; its engine ends",
    "restarts": "engine ends, starts anew",
    "settings": "what runs goes on",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="a file to read in place of config.yaml")
    parser.add_argument("--json", action="store_true", help="for programs")
    add_url(parser)


def run(args: argparse.Namespace) -> int:
    with Running(args) as running:
        plan = running.ask("GET", "/-/plan") if args.file is None else _of(running, args.file)
    if args.json:
        print(json.dumps(plan, indent=2))
    else:
        print("\n".join(_table(plan)))
    return CHANGES if plan["lines"] else 0


def _of(running: Running, file: Path) -> Any:
    try:
        return running.ask("POST", "/-/plan", _text(file))
    except Refused as refused:
        raise refused.of(file) from None


def _text(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError((Problem(f"can't be read: {error.strerror}", "", file),)) from error


def _table(plan: dict[str, Any]) -> list[str]:
    if not plan["lines"]:
        return ["nothing would change"]
    rows = [(change["name"], EFFECTS[change["effect"]], change["changes"]) for change in plan["models"]]
    rows += [("(all)", "at once", [change]) for change in plan["others"]]
    rows += [("(all)", "at the next start", [change]) for change in plan["at_start"]]
    first = max(len(name) for name, _, _ in [("MODEL", "", []), *rows]) + 2
    second = max(len(effect) for _, effect, _ in rows) + 2
    lines = [f"{'MODEL':<{first}}{'EFFECT':<{second}}CHANGES"]
    for name, effect, changes in rows:
        for change in changes or [""]:
            lines.append(f"{name:<{first}}{effect:<{second}}{change}".rstrip())
            name = effect = ""
    return lines

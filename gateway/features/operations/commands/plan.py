"""`ctxgate plan`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from gateway.cli.client import RefusedConfig, RunningGateway
from gateway.cli.options import FILE, Command, config_option, json_option, url_option
from gateway.cli.text import say
from gateway.config import ConfigError, Problem

CHANGES = 3

EXAMPLES = f"""\
examples:
  ctxgate plan                     the present config.yaml
  ctxgate plan edited.yaml         a copy of it that you have edited

exit codes:
  0    nothing would change
  {CHANGES}    something would change
  2    the file has mistakes, which are shown
  69   no gateway runs
"""

EFFECTS = {
    "added": "added",
    "removed": "removed; its engine ends",
    "restarts": "its engine restarts",
    "settings": "its engine keeps running",
}


@click.command(cls=Command, epilog=EXAMPLES)
@config_option
@url_option
@json_option
@click.argument("file", required=False, type=FILE, metavar="[FILE]", help="A file to read instead of config.yaml.")
def plan(config: Path | None, url: str | None, as_json: bool, file: Path | None) -> int:
    """Shows what would change if the running gateway read config.yaml, or FILE in its place: which engines keep
    running, which end or restart, and what needs a restart of the gateway. Changes nothing."""
    with RunningGateway(config, url) as gateway:
        planned = gateway.ask("GET", "/-/plan") if file is None else _plan_of(gateway, file)
    if as_json:
        say(json.dumps(planned, indent=2))
    elif planned["lines"]:
        _show(planned)
    else:
        say("nothing would change")
    return CHANGES if planned["lines"] else 0


def _plan_of(gateway: RunningGateway, file: Path) -> Any:
    try:
        text = file.read_bytes()
    except OSError as error:
        raise ConfigError((Problem(f"can't be read: {error.strerror}", "", file),)) from error
    try:
        return gateway.ask("POST", "/-/plan", text)
    except RefusedConfig as refused:
        raise refused.of(file) from None


def _show(planned: dict[str, Any]) -> None:
    from gateway.cli.table import show, table

    rows = [(model["name"], EFFECTS[model["effect"]], "\n".join(model["changes"])) for model in planned["models"]]
    rows += [("(all)", "at once", change) for change in planned["others"]]
    rows += [("(all)", "at the next start", change) for change in planned["at_start"]]
    show(table(("MODEL", "EFFECT", "CHANGES"), rows))

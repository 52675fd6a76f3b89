"""`ctxgate usage`"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from gateway.cli.client import RunningGateway
from gateway.cli.options import Command, config_option, configuration, json_option, url_option
from gateway.cli.text import say
from gateway.errors import ProviderAuthentication, ProviderInvalidRequest, ProviderUnavailable

EXAMPLES = """\
examples:
  ctxgate usage                            the last 30 days, day by day
  ctxgate usage --by key --since 2026-11-01
  ctxgate usage --by model --since 7d
  ctxgate usage --by client --csv > usage.csv
"""

BY = ("day", "key", "model", "client")
COLUMNS = ("requests", "errors", "prompt_tokens", "cached_tokens", "completion_tokens", "seconds")
UNITS = ("sound_seconds", "characters", "pictures")
"""Columns of models that hear, speak and draw; a table shows those that were used."""


@click.command(cls=Command, epilog=EXAMPLES)
@config_option
@url_option
@click.option("--by", type=click.Choice(BY), default="day", help="What each row sums up (default: day).")
@click.option("--since", default="30d", metavar="DAY", help="First day (UTC): 2026-11-23, or 7d (default: 30d).")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, for spreadsheets.")
@json_option
def usage(config: Path | None, url: str | None, by: str, since: str, as_csv: bool, as_json: bool) -> None:
    """Shows how much each key, model and program used.

    Asks the running gateway; without one, reads its store. Days are those of UTC.
    """
    if as_csv and as_json:
        raise ProviderInvalidRequest("--csv and --json exclude each other")
    found = _found(config, url, by, since)
    if as_json:
        say(json.dumps(found, indent=2))
    elif as_csv:
        _print_csv(by, found["usage"])
    else:
        _print_table(by, found["usage"])


def _found(config: Path | None, url: str | None, by: str, since: str) -> Any:
    try:
        with RunningGateway(config, url) as gateway:
            return gateway.ask("GET", f"/-/usage?by={by}&since={since}")
    except (ProviderUnavailable, ProviderAuthentication) as error:
        if url is not None:
            raise
        if isinstance(error, ProviderAuthentication):
            say("ctxgate: the gateway requires a key, so its last minute is missing", file=sys.stderr)
        return asyncio.run(_stored(config, by, since))


async def _stored(config: Path | None, by: str, since: str) -> dict[str, Any]:
    from gateway.features.operations import usage_table as table
    from gateway.services import store_url
    from gateway.store import Store

    first = table.first_day(since, time.time())
    store = await Store.open(store_url(configuration(config)))
    try:
        column = next(each for each in table.BY if each == by)
        return {"by": by, "since": first, "usage": await table.report(store, column, first)}
    finally:
        await store.aclose()


def _print_csv(by: str, rows: list[dict[str, Any]]) -> None:
    import csv

    writer = csv.DictWriter(sys.stdout, (by, *COLUMNS, *UNITS), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _print_table(by: str, rows: list[dict[str, Any]]) -> None:
    from gateway.cli.table import show, table

    total = {column: sum(row[column] for row in rows) for column in (*COLUMNS, *UNITS)}
    columns = (*COLUMNS, *(unit for unit in UNITS if total[unit]))
    lines = [(str(row[by] or "-"), *_numbers(row, columns)) for row in rows]
    if len(rows) > 1:
        lines.append(("total", *_numbers(total, columns)))
    head = tuple(column.removesuffix("_tokens").replace("_", " ").upper() for column in (by, *columns))
    show(table(head, lines, right=head[1:]))


def _numbers(row: dict[str, Any], columns: tuple[str, ...]) -> list[str]:
    return [f"{row[column]:,.0f}" for column in columns]

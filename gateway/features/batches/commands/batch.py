"""`ctxgate batch`"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from gateway.cli.client import RunningGateway
from gateway.cli.options import Group, config_option, json_option, url_option
from gateway.cli.text import say
from gateway.errors import ProviderInvalidRequest

EXAMPLES = """\
examples:
  ctxgate batch ls                  all batches, newest first
  ctxgate batch watch               the newest one, until it ends
  ctxgate batch watch batch_1f0c…   another one
  ctxgate batch ls --json | jq -r '.[] | select(.status == "completed") | .output_file_id'
"""

Batch = dict[str, Any]

OVER = ("completed", "failed", "expired", "cancelled")
EVERY_SECONDS = 1.0
BAR = 20
PAGE = 100
HEAD = ("BATCH", "STATUS", "PROGRESS", "DONE", "FAILED", "ENDS", "ENDPOINT")
FAILED = 1


@click.group(cls=Group, epilog=EXAMPLES)
@config_option
def batch(config: Path | None) -> None:
    """Shows the batches of a running gateway. Programs create them: POST /v1/files, then POST /v1/batches.

    A batch created with a key of `ctxgate keys` is visible only to that key's user; this command uses the first of
    server.api_keys.
    """


@batch.command("ls")
@config_option
@url_option
@json_option
def ls(config: Path | None, url: str | None, as_json: bool) -> None:
    """Lists the batches, newest first."""
    with RunningGateway(config, url) as gateway:
        found = list(_batches(gateway))
    if as_json:
        say(json.dumps(found, indent=2))
        return
    from gateway.cli.table import show, table

    now = time.time()
    show(table(HEAD, [_row(each, now) for each in found], right=("DONE", "FAILED")))


@batch.command("watch")
@config_option
@url_option
@click.argument("id", metavar="[ID]", required=False, help="As `ctxgate batch ls` shows it (default: the newest).")
def watch(config: Path | None, url: str | None, id: str | None) -> int:
    """Follows a batch until it ends. Exits with 1 unless it completes. Ctrl-C leaves it running."""
    with RunningGateway(config, url) as gateway:
        if id is None:
            newest = next(_batches(gateway), None)
            if newest is None:
                raise ProviderInvalidRequest("there is no batch")
            id = str(newest["id"])
        last = _live(gateway, id) if sys.stdout.isatty() else _lines(gateway, id)
    for fault in (last["errors"] or {}).get("data", ()):
        place = "" if fault["line"] is None else f"line {fault['line']}: "
        say(f"ctxgate: {place}{fault['message']}", file=sys.stderr)
    return 0 if last["status"] == "completed" else FAILED


def ends_at(batch: Batch, now: float) -> float | None:
    """When the batch ended, or will if it goes on as until now; seconds since 1970, None if that can't be told."""
    for status in OVER:
        if batch[f"{status}_at"] is not None:
            return float(batch[f"{status}_at"])
    done, total = _counts(batch)
    if batch["in_progress_at"] is None or not done:
        return None
    return now + (now - float(batch["in_progress_at"])) / done * (total - done)


def _batches(gateway: RunningGateway) -> Iterator[Batch]:
    after = ""
    while True:
        page = gateway.ask("GET", f"/v1/batches?limit={PAGE}{after}")
        yield from page["data"]
        if not page["has_more"]:
            return
        after = f"&after={page['last_id']}"


def _follow(gateway: RunningGateway, id: str) -> Iterator[Batch]:
    """The batch, again and again until it has ended."""
    while True:
        batch = gateway.ask("GET", f"/v1/batches/{quote(id, safe='')}")
        yield batch
        if batch["status"] in OVER:
            return
        time.sleep(EVERY_SECONDS)


def _live(gateway: RunningGateway, id: str) -> Batch:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from gateway.cli.table import console

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[ends]}"),
    )  # fmt: skip
    batch: Batch = {}
    with Progress(*columns, console=console()) as progress:
        task = progress.add_task("", total=None, ends="")
        for batch in _follow(gateway, id):
            done, total = _counts(batch)
            progress.update(
                task, description=batch["status"], total=total or None, completed=done, ends=_ends(batch, time.time())
            )
    return batch


def _lines(gateway: RunningGateway, id: str) -> Batch:
    batch: Batch = {}
    before = None
    for batch in _follow(gateway, id):
        done, total = _counts(batch)
        if (now := (batch["status"], done)) != before:
            say(f"{batch['status']} {done}/{total} {_ends(batch, time.time())}".rstrip(), flush=True)
            before = now
    return batch


def _row(batch: Batch, now: float) -> tuple[str, ...]:
    done, total = _counts(batch)
    failed = batch["request_counts"]["failed"]
    return (
        batch["id"], batch["status"], _bar(done, total), f"{done}/{total}", str(failed), _ends(batch, now),
        batch["endpoint"],
    )  # fmt: skip


def _bar(done: int, total: int) -> str:
    full = BAR * done // total if total else 0
    return "━" * full + "─" * (BAR - full)


def _ends(batch: Batch, now: float) -> str:
    """The time of the day, and the day if it is another one."""
    ends = ends_at(batch, now)
    if ends is None:
        return ""
    there = time.localtime(ends)
    day = "" if time.strftime("%F", there) == time.strftime("%F", time.localtime(now)) else "%F "
    about = "" if batch["status"] in OVER else "about "
    return about + time.strftime(f"{day}%H:%M", there)


def _counts(batch: Batch) -> tuple[int, int]:
    """Requests that are answered, errors included, and all."""
    counts = batch["request_counts"]
    return counts["completed"] + counts["failed"], counts["total"]

"""`ctxgate batch` against a real `ctxgate serve`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.features.batches.commands.batch import ends_at
from tests.cli.commands import answering, config, ctxgate, serving
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.support.batches import chats, ended, of, start


def batch(**fields: Any) -> dict[str, Any]:
    times = dict.fromkeys(("in_progress_at", "completed_at", "failed_at", "expired_at", "cancelled_at"))
    return {**times, "request_counts": {"total": 100, "completed": 20, "failed": 5}, **fields}


@pytest.mark.parametrize(
    ("fields", "ends"),
    [
        ({}, None),  # still validating
        ({"in_progress_at": 1000}, 1400.0),  # 25 of 100 in 100 s
        ({"in_progress_at": 1000, "request_counts": {"total": 9, "completed": 0, "failed": 0}}, None),
        ({"in_progress_at": 1000, "completed_at": 1090}, 1090.0),
        ({"cancelled_at": 1050}, 1050.0),
    ],
)
def test_the_end(fields: dict[str, Any], ends: float | None) -> None:
    assert ends_at(batch(**fields), now=1100.0) == ends


async def test_the_commands(tmp_path: Path) -> None:
    port = free_port()
    config(
        tmp_path,
        f"active_model: e\nmodels: {{e: {{runtime: echo}}}}\nstate_dir: {tmp_path}/state\nserver: {{port: {port}}}\n",
    )
    nobody = await asyncio.to_thread(ctxgate, "batch", "ls", cwd=tmp_path)
    assert (nobody.returncode, "no gateway answers" in nobody.stderr) == (69, True)
    async with asyncio.timeout(PATIENCE), of(f"http://127.0.0.1:{port}") as client:
        with serving(tmp_path), answering(port):
            none = await asyncio.to_thread(ctxgate, "batch", "watch", cwd=tmp_path)
            assert (none.returncode, none.stderr) == (2, "ctxgate: there is no batch\n")
            first = await start(client, chats("a", "b", model="e"))
            await ended(client, first.id)
            watched = await asyncio.to_thread(ctxgate, "batch", "watch", cwd=tmp_path)
            assert (watched.returncode, watched.stdout.startswith("completed 2/2 ")) == (0, True)
            bad = await start(client, [b"{"])
            await ended(client, bad.id)
            failed = await asyncio.to_thread(ctxgate, "batch", "watch", bad.id, cwd=tmp_path)
            assert (failed.returncode, failed.stdout.startswith("failed 0/1")) == (1, True)
            assert failed.stderr.startswith("ctxgate: line 1: the line is not valid JSON")
            listed = await asyncio.to_thread(ctxgate, "batch", "ls", cwd=tmp_path)
            head, *rows = listed.stdout.splitlines()
            assert head.split() == ["BATCH", "STATUS", "PROGRESS", "DONE", "FAILED", "ENDS", "ENDPOINT"]
            found = {row.split()[0]: row.split()[1:4] for row in rows}
            assert found == {first.id: ["completed", "━" * 20, "2/2"], bad.id: ["failed", "─" * 20, "0/1"]}
            as_json = await asyncio.to_thread(ctxgate, "batch", "ls", "--json", cwd=tmp_path)
            assert {each["id"] for each in json.loads(as_json.stdout)} == {first.id, bad.id}

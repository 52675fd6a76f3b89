"""kill -9 at random moments of a batch: each line has one answer in the end, in the order of the input.

The full run: CTXGATE_BATCH_LINES=2000 CTXGATE_BATCH_KILLS=20.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import httpx
import pytest
from openai import APIConnectionError, AsyncOpenAI

from tests.cli.commands import config
from tests.ports import free_port
from tests.support.batches import OVER, chats, of, read, start
from tests.support.kills import Gateway, database

LINES, KILLS = int(os.environ.get("CTXGATE_BATCH_LINES", "120")), int(os.environ.get("CTXGATE_BATCH_KILLS", "3"))
CONFIG = """\
active_model: echo
models:
  echo: {{runtime: echo}}
state_dir: {folder}/state
{store}
server: {{port: {port}}}
"""


async def done(client: AsyncOpenAI, id: str) -> tuple[str, int]:
    """The batch's status, and how many lines are answered."""
    batch = await client.batches.retrieve(id)
    assert batch.request_counts is not None
    return batch.status, batch.request_counts.completed + batch.request_counts.failed


async def kill_all(gateway: Gateway, client: AsyncOpenAI, id: str, lines: int, kills: int) -> None:
    """Kills the gateway `kills` times between the batch's first and last answer, and while its file is read."""
    chance = random.Random(7)
    for kill in range(kills):
        wanted = kill * lines // kills
        while True:
            status, answered = await done(client, id)
            if answered >= wanted or status in OVER:
                break
            await asyncio.sleep(0.005)
        await asyncio.sleep(chance.uniform(0, 0.02))
        await asyncio.to_thread(gateway.kill)
        await gateway.start()
        print(f"kill {kill + 1}: {status}, {answered} answers")


async def scenario(folder: Path, store: str, lines: int, kills: int) -> None:
    gateway = Gateway(folder, free_port())
    config(folder, CONFIG.format(folder=folder, store=store, port=gateway.port))
    texts = [f"line {number}" for number in range(lines)]
    await gateway.start()
    try:
        async with of(f"http://127.0.0.1:{gateway.port}") as client:
            batch = await start(client, chats(*texts))
            await kill_all(gateway, client, batch.id, lines, kills)
            while True:
                try:
                    if (await done(client, batch.id))[0] in OVER:
                        break
                except (APIConnectionError, httpx.TransportError):
                    pass
                await asyncio.sleep(0.05)
            batch = await client.batches.retrieve(batch.id)
            assert (batch.status, batch.error_file_id) == ("completed", None)
            assert batch.request_counts is not None
            assert batch.request_counts.to_dict() == {"total": lines, "completed": lines, "failed": 0}
            output = await read(client, batch.output_file_id)
            assert [each["custom_id"] for each in output] == texts
            said = [each["response"]["body"]["choices"][0]["message"]["content"] for each in output]
            assert said == texts
    finally:
        gateway.kill()


@pytest.mark.some(2)
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_lines_and_kills(tmp_path: Path, kind: str) -> None:
    with database(kind) as store:
        await scenario(tmp_path, store, lines=LINES, kills=KILLS)

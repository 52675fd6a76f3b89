"""A batch keeps to the limits of the key that made it, and so do the responses of a WebSocket."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from gateway.server.keys import FILE, KeyFile
from gateway.wire.limits import Limits
from tests.gateway.double import answers, completion, endless
from tests.support.batches import chats, ended, gateway, of, read, start


async def test_a_model_that_the_key_may_not_use(tmp_path: Path) -> None:
    _, key = KeyFile(tmp_path / FILE).add(scopes=["models"], limits=Limits(models=("echo",)))
    async with gateway(tmp_path, answers(completion("Yes."))) as (url, engine), of(url, key) as client:
        batch = await ended(client, (await start(client, [*chats("a"), *chats("b", model="m")])).id)
        assert [each["custom_id"] for each in await read(client, batch.output_file_id)] == ["a"]
        (error,) = await read(client, batch.error_file_id)
        assert error["response"]["body"]["error"]["code"] == "model_not_allowed"
        assert engine.requests == []


async def test_requests_at_a_time(tmp_path: Path) -> None:
    """What the key may not ask now it asks later."""
    _, key = KeyFile(tmp_path / FILE).add(scopes=["models"], limits=Limits(parallel=1))
    async with gateway(tmp_path) as (url, _), of(url, key) as client:
        batch = await start(client, chats(*"abcdef"))
        async with of(url, key) as other:
            batch = await ended(other, batch.id)
        assert batch.request_counts is not None
        assert batch.request_counts.completed == 6


async def test_a_key_that_is_revoked(tmp_path: Path) -> None:
    """Its batch is cancelled before the next requests."""
    keys = KeyFile(tmp_path / FILE)
    entry, key = keys.add(scopes=["models"])
    _, other = keys.add(scopes=["models"])
    async with gateway(tmp_path, endless, at_a_time=1) as (url, engine), of(url, key) as client:
        batch = await start(client, chats("a", model="m"))
        await engine.asked()
    keys.revoke(entry.id)
    async with gateway(tmp_path, endless) as (url, engine), of(url, other) as client:
        batch = await ended(client, batch.id)
        assert batch.status == "cancelled"
        assert engine.requests == []


@pytest.mark.parametrize("limits", [Limits(requests_per_minute=1)])
async def test_a_websocket(tmp_path: Path, limits: Limits) -> None:
    _, key = KeyFile(tmp_path / FILE).add(scopes=["models"], limits=limits)
    async with gateway(tmp_path) as (url, _):
        head = {"authorization": f"Bearer {key}"}
        async with connect(f"{url.replace('http', 'ws')}/v1/responses", proxy=None, additional_headers=head) as client:
            told: list[Any] = []
            for _ in range(2):
                await client.send(json.dumps({"type": "response.create", "model": "echo", "input": "Hi"}))
                while not told or told[-1]["type"] not in ("response.completed", "error"):
                    told.append(json.loads(await client.recv()))
                last = told.pop()
                told.append({"type": "seen", "last": last})
            assert told[-1]["last"]["error"]["code"] == "rate_limit_exceeded"
            assert told[-1]["last"]["status"] == 429

"""Batches through OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from openai.types import Batch

from gateway.app import build
from gateway.config import Config, Model, Server
from gateway.features.batches.settings import Batches
from tests.gateway.double import Double, Json, Script
from tests.gateway.running import FAST, NO_COMMENTS
from tests.patience import PATIENCE
from tests.provider.server import serve

ENDPOINT: Any = "/v1/chat/completions"
OVER = ("completed", "failed", "expired", "cancelled")


def line(id: str, url: str = ENDPOINT, **body: Any) -> bytes:
    return json.dumps({"custom_id": id, "method": "POST", "url": url, "body": body}).encode()


def chats(*texts: str, model: str = "echo") -> list[bytes]:
    return [line(text, model=model, messages=[{"role": "user", "content": text}]) for text in texts]


@asynccontextmanager
async def gateway(folder: Path, *scripts: Script, **batches: Any) -> AsyncIterator[tuple[str, Double]]:
    """Its URL, and the engine of its model `m`; `echo` is another model."""
    async with asyncio.timeout(PATIENCE), Double(*scripts).serve() as double:
        models = {
            "echo": Model(name="echo", runtime="echo"),
            "m": Model(name="m", runtime="openai", base_url=f"http://127.0.0.1:{double.address.port}"),
        }
        config = Config(
            source=folder / "config.yaml",
            active_model="echo",
            models=models,
            server=Server(**NO_COMMENTS),
            sections={"batches": Batches(**batches)},
            state_dir=folder,
        )
        serving = serve(build(config), lifespan="on", http=FAST)
        url = await asyncio.to_thread(serving.__enter__)
        try:
            yield url, double
        finally:
            await asyncio.to_thread(serving.__exit__, None, None, None)


def of(url: str, key: str = "x") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


async def start(client: AsyncOpenAI, lines: Iterable[bytes], endpoint: Any = ENDPOINT, **more: Any) -> Batch:
    file = await client.files.create(file=("in.jsonl", b"\n".join(lines)), purpose="batch")
    return await client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more)


async def ended(client: AsyncOpenAI, id: str) -> Batch:
    while True:
        batch = await client.batches.retrieve(id)
        if batch.status in OVER:
            return batch
        await asyncio.sleep(0.02)


async def read(client: AsyncOpenAI, file: str | None) -> list[Json]:
    assert file is not None
    return [json.loads(each) for each in (await client.files.content(file)).text.splitlines()]

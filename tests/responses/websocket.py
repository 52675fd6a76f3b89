"""`/v1/responses` over WebSocket, message by message."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tests.gateway.double import Json
from tests.gateway.running import Running
from tests.patience import PATIENCE

PATH = "/v1/responses"


@asynccontextmanager
async def opened(gateway: Running, path: str = PATH, **options: Any) -> AsyncIterator[ClientConnection]:
    url = f"ws://127.0.0.1:{gateway.port}{path}"
    async with connect(url, proxy=None, open_timeout=PATIENCE, **options) as client:
        yield client


async def ask(client: ClientConnection, **fields: Any) -> None:
    await client.send(json.dumps({"type": "response.create", "model": "m", "input": "Hi", **fields}))


async def turn(client: ClientConnection, **fields: Any) -> list[Json]:
    """The events of one response."""
    await ask(client, **fields)
    return await rest(client)


async def rest(client: ClientConnection) -> list[Json]:
    events: list[Json] = []
    while not events or events[-1]["type"] not in ("response.completed", "response.failed", "error"):
        events.append(json.loads(await client.recv()))
    return events

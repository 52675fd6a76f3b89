"""Streams of /v1/responses that end before their answer does, and what the gateway keeps of them."""

from __future__ import annotations

import asyncio
import json

import httpx

from tests.gateway.double import Json
from tests.gateway.running import Running
from tests.patience import PATIENCE


async def begun(gateway: Running, body: Json, *, at: str | None = None) -> Json:
    """The response of a stream, as its first event has it. Leaves at this text; else reads all that comes."""
    first: Json = {}
    asked = {"model": "m", "stream": True, **body}
    async with (
        httpx.AsyncClient(timeout=PATIENCE) as client,
        client.stream("POST", f"{gateway.url}/v1/responses", json=asked) as stream,
    ):
        async for line in stream.aiter_lines():
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                first = first or event["response"]
                if event["type"] == "response.output_text.delta" and event["delta"] == at:
                    break
    return first


async def kept(gateway: Running, id: str) -> Json:
    """The stored response, as soon as there is one: nobody tells a client that has left."""
    async with asyncio.timeout(PATIENCE), httpx.AsyncClient(timeout=PATIENCE) as client:
        while (answer := await client.get(f"{gateway.url}/v1/responses/{id}")).status_code == 404:
            pass
    found: Json = answer.json()
    return found

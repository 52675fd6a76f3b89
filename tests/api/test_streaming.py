"""The one streaming loop: comments while the engine is silent, and errors before and after the first byte."""

from __future__ import annotations

import asyncio

import pytest

from tests.gateway.double import Exchange, Json, Script, answers
from tests.gateway.running import running

SOON = {"progress_after_seconds": 0.05, "keep_alive_seconds": 0.05}
HI = [{"role": "user", "content": "Hi"}]
BUSY = answers({"error": {"message": "busy"}}, 503)

STREAMS: dict[str, tuple[str, Json, bytes]] = {
    "completions": ("/v1/completions", {"prompt": "Hi"}, b"data: [DONE]\n\n"),
    "responses": ("/v1/responses", {"input": "Hi", "store": False}, b""),
    "messages": ("/v1/messages", {"messages": HI, "max_tokens": 9}, b""),
}
"""Path, request, end mark."""


def after(seen: asyncio.Event, script: Script) -> Script:
    async def waits(exchange: Exchange) -> None:
        await seen.wait()
        await script(exchange)

    return waits


@pytest.mark.parametrize("name", STREAMS)
async def test_an_error_after_the_first_comment_is_a_frame(name: str) -> None:
    path, body, end = STREAMS[name]
    seen = asyncio.Event()
    async with running(after(seen, BUSY), progress=SOON) as gateway, await gateway.connect() as client:
        await client.post({**body, "stream": True}, path)
        assert (await client.head())[1] == 200
        parts = client.parts()
        assert (await anext(parts)).startswith(b": ctxgate ")
        seen.set()
        rest = b"".join([part async for part in parts])
    assert b"busy" in rest
    assert b'"error"' in rest
    assert rest.endswith(end)


@pytest.mark.parametrize("name", STREAMS)
async def test_an_error_before_the_first_byte_is_a_status(name: str) -> None:
    path, body, _ = STREAMS[name]
    async with running(BUSY) as gateway:
        answer = await gateway.ask({**body, "stream": True}, path)
    assert (answer.status, answer.headers["content-type"]) == (502, "application/json")
    assert "busy" in answer.error["message"]

"""Several doubles of engines at once, scripts whose connection ends, and a chat request as values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from gateway.core import Gateway
from gateway.wire.chat import ChatRequest, encode
from tests.gateway.client import chat
from tests.gateway.double import Double, Exchange, Script
from tests.patience import PATIENCE


async def gone(exchange: Exchange) -> None:
    """A script: the connection ends before the answer has begun."""
    exchange.reset()


async def cut(exchange: Exchange) -> None:
    """A script: a stream is promised, and the connection ends before its first event."""
    await exchange.start()
    exchange.reset()


@asynccontextmanager
async def doubles(*scripts: tuple[Script, ...]) -> AsyncIterator[list[Double]]:
    async with asyncio.timeout(PATIENCE), AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Double(*each).serve()) for each in scripts]


def request(text: str = "Hi", **fields: Any) -> ChatRequest:
    return ChatRequest.parse(encode(chat(text, **fields)))


async def asked(gateway: Gateway, request: ChatRequest) -> list[bytes]:
    with await gateway.chat(request) as run:
        if not request.stream:
            return [await run.whole()]
        found: list[bytes] = []
        while payloads := await run.payloads():
            found += payloads
        return found

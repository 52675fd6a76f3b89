"""One engine without a gateway: asked by itself, and stopped in the end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway import backends
from gateway.engines import Engine
from gateway.wire.chat import ChatRequest

HELLO = ChatRequest.parse(b'{"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}')


@asynccontextmanager
async def stopped(engine: Engine) -> AsyncIterator[Engine]:
    try:
        yield engine
    finally:
        await engine.stop()


async def answers(engine: Engine) -> bool:
    backend = backends.load(engine.model.runtime)(engine.model, await engine.requests.ensure())
    try:
        reply = await backend.open(HELLO, dict(HELLO.fields))
        return b"chat.completion" in await reply.whole()
    finally:
        await backend.aclose()

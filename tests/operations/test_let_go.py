"""What a request brought is let go of with its answer, not once Python's collector happens to find it.

The collector waits for thousands of objects, whatever their size; meanwhile, the bodies of answered requests would fill
the memory beside those that `server.max_bodies_bytes` counts.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Iterator

import pytest

from tests.gateway.running import FAST, running
from tests.hostile.suite import engine, long_texts

SIZE = 1_000_000
KEPT = SIZE // 4
"""Bytes that may stay: books, caches, and what is loaded with the first request of a kind."""

APIS = {
    "POST [/v1]/chat/completions": "/v1/chat/completions",
    "POST [/v1]/completions": "/v1/completions",
    "POST [/v1]/messages": "/v1/messages",
    "POST [/v1]/messages/count_tokens": "/v1/messages/count_tokens",
    "POST [/v1]/responses[/]": "/v1/responses",
    "POST [/v1]/responses/compact": "/v1/responses/compact",
    "POST [/v1]/responses/input_tokens": "/v1/responses/input_tokens",
    "POST [/v1]/conversations[/]": "/v1/conversations",
    "POST /api/chat": "/api/chat",
    "POST /api/generate": "/api/generate",
}


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Neither the collector nor what it would have found is in the way."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    yield
    tracemalloc.stop()
    gc.enable()
    gc.collect()


@pytest.mark.parametrize("key", APIS)
async def test_nothing_stays(key: str, uncollected: None) -> None:
    kept: dict[str, int] = {}
    async with running(engine, http=FAST) as gateway:
        for case in long_texts(key, SIZE):
            for _ in range(2):  # the first one loads what such requests need
                before = _held()
                await gateway.ask(case.make(), APIS[key])
                gateway.engine.requests.clear()
                left = await _left(before)
            if left > KEPT:
                kept[case.name] = left
                gc.collect()
    assert not kept


async def _left(before: int) -> int:
    """How much is left of an answered request: what a connection still does for it may take a moment."""
    for _ in range(20):
        left = _held() - before
        if left <= KEPT:
            break
        await asyncio.sleep(0.01)
    return left


def _held() -> int:
    """Bytes that the gateway holds; what the engine's double does lies in files of the tests."""
    snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, "*/tests/*")])
    return sum(trace.size for trace in snapshot.traces)

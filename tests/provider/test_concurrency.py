"""Concurrent calls go to the wire concurrently (OpenArmature §5, §8.1.4)."""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.provider import OpenAIProvider, UserMessage
from tests.patience import PATIENCE

from .server import Gathering, serve

CALLS = 1000


@pytest.mark.usefixtures("many_files")
async def test_a_thousand_calls_are_on_the_wire_at_once_and_each_gets_its_own_answer() -> None:
    app = Gathering(CALLS)
    start = time.perf_counter()
    with serve(app) as url:
        async with OpenAIProvider(url, "m") as provider, asyncio.timeout(PATIENCE):
            responses = await asyncio.gather(*(provider.complete([UserMessage(f"call {n}")]) for n in range(CALLS)))
    print(f"{CALLS} calls, {app.waiting} in flight at once, {time.perf_counter() - start:.1f} s")
    assert app.waiting == CALLS
    assert [response.message.content for response in responses] == [f"call {n}" for n in range(CALLS)]

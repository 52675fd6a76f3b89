"""Both ways a chat request goes: the fast protocol that `ctxgate serve` uses, and plain ASGI."""

from __future__ import annotations

import asyncio

import pytest

from tests.gateway.running import FAST


@pytest.fixture(params=[FAST, "httptools"], ids=["fast", "asgi"])
def http(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


class Clock:
    """The running loop's time, which goes on only as the test says: not with a slow machine's."""

    def __init__(self, now: float) -> None:
        self.now = now

    async def goes_on(self, seconds: float) -> None:
        """Returns once all that is due has been done."""
        self.now += seconds
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    loop = asyncio.get_running_loop()
    clock = Clock(loop.time())
    monkeypatch.setattr(loop, "time", lambda: clock.now)
    return clock

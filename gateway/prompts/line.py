"""Requests that wait for a slot of an engine, here instead of in the engine's queue, which wouldn't say which slot a
request got."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

LINE_SECONDS = 30.0
"""How long a request waits for a slot before it waits in the engine's own queue."""
SOON_SECONDS = 1.0
"""A request that can begin to answer within this time goes before one that reads longer."""
OVERTAKEN_SECONDS = 10.0
"""For how long others may go before a request that reads longer."""


@dataclass(eq=False)
class Waiter:
    """reads: seconds that the engine will read for it. since: when it came, by time.monotonic."""

    reads: float
    since: float = field(default_factory=time.monotonic)
    granted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


def first(waiting: Sequence[Waiter], now: float) -> Waiter:
    """Who gets the next slot: the oldest of those that can begin soon, unless a longer one has been overtaken for long
    enough. waiting: not empty."""
    return min(
        waiting,
        key=lambda each: (each.reads > SOON_SECONDS and now - each.since < OVERTAKEN_SECONDS, each.since),
    )


class SlotLine:
    """has_idle: whether a slot is free."""

    def __init__(self, has_idle: Callable[[], bool]) -> None:
        self._has_idle = has_idle
        self._waiting: list[Waiter] = []

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, reads: float) -> None:
        """Returns once a slot is free and it is the request's turn; after LINE_SECONDS in any case.

        After this returns, the caller must take a place, or call `freed`. reads: see `Waiter`.
        """
        if self._has_idle() and not self._waiting:
            return
        waiter = Waiter(reads)
        end = waiter.since + LINE_SECONDS
        while True:
            self._waiting.append(waiter)
            try:
                async with asyncio.timeout(end - time.monotonic()):
                    await waiter.granted
            except TimeoutError:
                return
            except asyncio.CancelledError:
                if waiter.granted.done() and not waiter.granted.cancelled():
                    self.freed()
                raise
            finally:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
            if self._has_idle():
                return
            # Another request came between.
            waiter = Waiter(reads, waiter.since)

    def freed(self) -> None:
        """A slot became or stayed idle: the next request may have it."""
        while self._waiting and self._has_idle():
            waiter = first(self._waiting, time.monotonic())
            self._waiting.remove(waiter)
            if not waiter.granted.done():
                waiter.granted.set_result(None)
                return

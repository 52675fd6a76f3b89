"""The requests that one engine works on, and the flex answers among them that can give way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from msgspec import Struct

from gateway.backends.base import Flexible
from gateway.engines.seat import EngineSeat
from gateway.wire.chat import DEFAULT, FLEX

PLACE_SECONDS = 5.0
"""How long a request waits for the slot of a flex answer before it waits in the engine's own queue."""


class Running(Struct, frozen=True):
    """A flex answer in an engine. key: identifies it. waited: seconds that it has waited so far. gives_way: it can be
    put aside now."""

    key: object
    waited: float = 0.0
    gives_way: bool = True


def put_aside(running: Iterable[Running], needed: int, maximum: float) -> list[object]:
    """The answers to put aside for `needed` slots: those that have waited least. maximum: seconds after which an answer
    counts like any other (`engines.flex_max_wait_seconds`)."""
    ready = [each for each in running if each.gives_way and each.waited < maximum]
    return [each.key for each in sorted(ready, key=lambda each: each.waited)[: max(0, needed)]]


class Places:
    """in_flight: requests that have entered and not left. flex: how many of them are flex. put_asides: flex answers
    that were put aside since the gateway started. idle_since: when the last request left, by time.monotonic."""

    def __init__(self) -> None:
        self.in_flight = self.flex = self.put_asides = 0
        self.idle_since = time.monotonic()
        self._last_rank = DEFAULT
        self._coming = 0
        """Requests for which slots are being freed."""
        self.flexible: dict[Flexible, EngineSeat] = {}
        """Answers in flight that may give way."""

    @property
    def rank(self) -> int:
        """The best of the requests in flight or, if there are none, of the last one; see `admission`."""
        if self.in_flight:
            return FLEX if self.in_flight == self.flex else DEFAULT
        return self._last_rank

    def free(self, slots: int) -> int:
        """How many of the engine's slots are free; below 0 if more requests wait there."""
        return slots - self.in_flight - self._coming

    def enter(self, rank: int) -> None:
        self.in_flight += 1
        self.flex += rank == FLEX

    def leave(self, rank: int) -> None:
        self.in_flight -= 1
        self.flex -= rank == FLEX
        self._last_rank = rank
        if not self.in_flight:
            self.rest()

    def rest(self) -> None:
        """It is idle from now on."""
        self.idle_since = time.monotonic()

    def register(self, reply: Flexible, seat: EngineSeat) -> None:
        """Registers an answer that can be put aside for other requests."""
        self.flexible[reply] = seat
        reply.seated(seat)

    def put_aside(self, count: int, maximum: float) -> list[asyncio.Task[None]]:
        """Frees up to `count` slots by putting flex answers aside. maximum: see `put_aside`."""
        self.flexible = {reply: seat for reply, seat in self.flexible.items() if not reply.closed}
        running = [Running(reply, seat.waited, reply.gives_way) for reply, seat in self.flexible.items()]
        chosen = put_aside(running, count, maximum)
        self.put_asides += len(chosen)
        return [reply.put_aside() for reply in self.flexible if reply in chosen]

    async def wait_until_left(self, going: list[asyncio.Task[None]]) -> None:
        """Waits until answers that were put aside have left their slots, for one request."""
        self._coming += 1
        try:
            await asyncio.wait(going, timeout=PLACE_SECONDS)
        finally:
            self._coming -= 1

    def keep_flexible(self) -> None:
        """Forgets answers that can't give way any more."""
        self.flexible = {reply: seat for reply, seat in self.flexible.items() if reply.gives_way}

    def gone(self) -> None:
        """The engine's process has ended."""
        self.flexible.clear()

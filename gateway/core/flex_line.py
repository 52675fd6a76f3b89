"""The gateway's queue of flex requests for a server that it doesn't start."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from msgspec import Struct

from gateway.config import Engines
from gateway.line import RETRY_SECONDS, Line, Tell, Waiter
from gateway.wire.chat import FLEX


class Load(Struct, frozen=True):
    """A server's requests in flight. others: those that aren't flex. all: every one."""

    others: int
    all: int


def free_places(load: Load, places: int | None) -> int:
    """How many flex requests may go now; below 1: none. places: requests that the server answers at once; None: nobody
    knows, so any other request may be waiting there."""
    if places is None:
        return 0 if load.others else sys.maxsize
    return places - load.all


class FlexLine(Line[None]):
    """load: counts the server's requests; those in `going` aren't in it yet. places: see `free_places`."""

    def __init__(self, model: str, load: Callable[[], Load], places: int | None) -> None:
        super().__init__()
        self.inside = 0
        """Requests within `place`."""
        self._model = model
        self._load = load
        self._places = places

    @asynccontextmanager
    async def place(self, limits: Engines, tell: Tell) -> AsyncIterator[None]:
        """Waits for the request's turn, or for `flex_max_wait_seconds`. tell: receives the request's progress. Call
        `admit_next` once it has left, however it does.

        Raises ProviderRateLimit if too many wait already.
        """
        if self._waiting or self._free() <= 0:
            self.check_room(self._model, limits.queue_length, RETRY_SECONDS)
            await self._wait_in_line(limits.flex_max_wait_seconds, tell)
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    def admit_next(self) -> None:
        """Lets the next requests go, after one has left the line or the server."""
        if self._waiting:
            self.serve(None, self._free())

    def _free(self) -> int:
        load = self._load()
        return free_places(Load(load.others, load.all + self.going), self._places)

    async def _wait_in_line(self, seconds: float, tell: Tell) -> None:
        waiter: Waiter[None] = self.add(Waiter(key := object(), FLEX))
        tell(lambda: str(self.progress(key, "place") or "waiting"))
        with suppress(TimeoutError):
            await self.wait(waiter, seconds)

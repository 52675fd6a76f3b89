"""The gateway's queue of flex requests for a server that it doesn't start."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from msgspec import Struct

from gateway.config import Engines
from gateway.line import Line, Waiter
from gateway.wire.chat import FLEX
from gateway.wire.progress import Progress


class Load(Struct, frozen=True):
    """A server's requests in flight. others: those that aren't flex. all: every one."""

    others: int
    all: int


def free_places(load: Load, places: int | None) -> int:
    """How many flex requests may go now. places: requests that the server answers at once; None: nobody knows, so any
    other request may be waiting there."""
    if places is None:
        return 0 if load.others else sys.maxsize
    return max(0, places - load.all)


class FlexLine(Line[None]):
    """load: of the server, as the route counts it without those that are `going`. places: see `free_places`."""

    def __init__(self, model: str, load: Callable[[], Load], places: int | None) -> None:
        super().__init__()
        self.inside = 0
        """Requests within `place`."""
        self._model = model
        self._load = load
        self._places = places

    @asynccontextmanager
    async def place(
        self, limits: Engines, tell: Callable[[Callable[[], str]], None] = lambda say: None
    ) -> AsyncIterator[None]:
        """Waits for the request's turn, or for `flex_max_wait_seconds`. tell: receives the request's progress.

        Raises ProviderRateLimit if too many wait already.
        """
        if self or not self._free():
            self.check_room(self._model, limits.queue_length, 5)
            await self._turn(limits.flex_max_wait_seconds, tell)
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    def admit_next(self) -> None:
        """Lets the next requests go, after one has left the server."""
        self.serve(None, self._free())

    def _free(self) -> int:
        load = self._load()
        return free_places(Load(load.others, load.all + self.going), self._places)

    async def _turn(self, seconds: float, tell: Callable[[Callable[[], str]], None]) -> None:
        waiter: Waiter[None] = self.add(Waiter(key := object(), FLEX))

        def progress() -> str:
            position = self.position(key)
            if position is None:
                return "waiting"
            return str(Progress("place", position, len(self), None, self.waited(key)))

        tell(progress)
        try:
            await self.wait(waiter, seconds)
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_soon(self.admit_next)  # its turn is the next one's
            raise

"""The gateway's queue of flex requests for a server that it doesn't start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic

from msgspec import Struct

from gateway.config import Engines
from gateway.errors import ProviderRateLimit
from gateway.observe.shares import Tally
from gateway.wire.progress import Progress


class Load(Struct, frozen=True):
    """A server's requests in flight. others: those that aren't flex. all: every one."""

    others: int
    all: int


def may_go(load: Load, places: int | None) -> bool:
    """Whether a flex request may go now. places: requests that the server answers at once; None: nobody knows, so any
    other request may be waiting there."""
    return load.others == 0 if places is None else load.all < places


class FlexLine:
    """load: of the server, as the route counts it without this line's `coming`. places: see `may_go`."""

    def __init__(self, model: str, load: Callable[[], Load], places: int | None) -> None:
        self.coming = self.inside = 0
        """Requests that may go but haven't yet; requests within `place`."""
        self._model = model
        self._load = load
        self._places = places
        self._asking = Tally()
        self._waiting: dict[asyncio.Future[None], float] = {}
        """The waiting requests, the oldest first, and since when they wait, by time.monotonic."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def waited(self) -> float:
        """Seconds that the oldest request in it has waited; 0 if it is empty."""
        return max((monotonic() - since for since in self._waiting.values()), default=0.0)

    @asynccontextmanager
    async def place(
        self, limits: Engines, tell: Callable[[Callable[[], str]], None] = lambda say: None
    ) -> AsyncIterator[None]:
        """Waits for the request's turn, or for `flex_max_wait_seconds`. tell: receives the request's progress.

        Raises ProviderRateLimit if too many wait already.
        """
        if self._waiting or not self._free():
            self._check_room(limits.queue_length)
            with self._asking.one_more():
                await self._turn(limits, tell)
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    def admit_next(self) -> None:
        """Lets the next requests go, after one has left the server."""
        while self._waiting and self._free():
            turn = next(iter(self._waiting))
            del self._waiting[turn]
            if not turn.done():
                self.coming += 1
                turn.set_result(None)

    def _free(self) -> bool:
        load = self._load()
        return may_go(Load(load.others, load.all + self.coming), self._places)

    def _check_room(self, maximum: int) -> None:
        """Raises ProviderRateLimit."""
        if not self._asking.has_room(maximum):
            raise ProviderRateLimit(
                f"model {self._model!r}: {len(self)} requests are already waiting (engines.queue_length)",
                code="queue_full",
                retry_after=5,
            )

    async def _turn(self, limits: Engines, tell: Callable[[Callable[[], str]], None]) -> None:
        waiting = self._waiting
        turn = asyncio.get_running_loop().create_future()
        waiting[turn] = since = monotonic()
        tell(
            lambda: (
                str(Progress("place", [*waiting].index(turn) + 1, len(waiting), None, monotonic() - since))
                if turn in waiting
                else "waiting"
            )
        )
        try:
            async with asyncio.timeout(limits.flex_max_wait_seconds):
                await turn
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_soon(self.admit_next)  # its turn is the next one's
            raise
        finally:
            waiting.pop(turn, None)
            if turn.done() and not turn.cancelled():
                self.coming -= 1

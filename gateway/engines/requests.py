"""The requests of one engine: how they come in, wait, are answered and go out.

All of it runs in the event loop and decides without waiting, so callers can't race.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from gateway.backends import Address, Backend
from gateway.backends.base import Flexible
from gateway.config import Model
from gateway.engines.places import Places
from gateway.engines.recipe import slots
from gateway.engines.residency import Residency
from gateway.engines.seat import EngineSeat
from gateway.engines.startup import Startup
from gateway.engines.states import State
from gateway.errors import ProviderModelNotLoaded
from gateway.line import RETRY_SECONDS, Line, Waiter
from gateway.wire.chat import DEFAULT, FLEX
from gateway.wire.progress import Waiting


class EngineForRequests(Protocol):
    """An engine as its requests see it; `gateway.engines.engine.Engine` is one."""

    model: Model
    residency: Residency
    startup: Startup
    load_seconds: float | None
    running_at: Address | None

    @property
    def state(self) -> State: ...
    @property
    def accepting(self) -> Backend | None: ...
    @property
    def current_backend(self) -> Backend | None: ...
    @property
    def waits_for(self) -> Waiting | None: ...
    def emptied(self) -> None: ...
    async def settle_doubt(self) -> None: ...


class EngineRequests:
    """A request comes in through `enter` if it may go to the engine at once (`backend`), else through `join`, which
    starts the engine if need be; it goes out through `leave`."""

    backend: Backend | None = None
    """Sends requests to the engine; None unless a request may go to it at once, whatever its service tier. While flex
    answers could give way, all others come by `join`, too."""
    has_answered = False
    """A request has ended while the engine took requests; a crash then isn't one of several in a row."""
    _gives_way = False
    """See `give_way`."""

    def __init__(self, engine: EngineForRequests) -> None:
        self.queue: Line[Backend] = Line()
        self.places = Places()
        self._engine = engine

    async def join(self, key: object = None, rank: int = DEFAULT) -> Backend:
        """Counts a request in and returns once the engine can answer it; `leave` counts it out again.

        Starts the engine if it doesn't run: once, however many requests wait. A caller that gives up doesn't end the
        start for the others. key: see `Engine.progress`. rank: of its service tier; with FLEX it waits for a free slot
        of the engine, too, and until nobody else waits. Any other request has a flex answer put aside if no slot is
        free, and waits for that for PLACE_SECONDS at most. Raises WeightsMissing, ProviderModelNotLoaded if the engine
        fails to start, is never started again or the wait was too long, ProviderRateLimit if too many requests wait
        already, and ProviderUnavailable if no engine is installed or its port is taken. The next call tries again.
        """
        engine = self._engine
        while True:
            if (backend := engine.accepting) is not None and (rank != FLEX or (not self.queue and self._free > 0)):
                if rank != FLEX and self._free <= 0 and (going := self._put_aside(1)):
                    await self.places.wait_until_left(going)
                    if (backend := engine.accepting) is None:
                        continue
                self.places.enter(rank)
                return backend
            if engine.state != "ready" or backend is not None:
                # It doesn't run, or the request has to let others go first.
                return await self._wait_in_queue(key, rank)
            await engine.settle_doubt()  # another request couldn't reach it

    async def join_again(self, key: object, waited: float) -> Backend:
        """Like `join`, for a flex answer that was put aside. waited: how long it had waited before, in seconds."""
        engine = self._engine
        while engine.state == "ready" and engine.accepting is None:
            await engine.settle_doubt()
        if (backend := engine.accepting) is not None and not self.queue and self._free > 0:
            self.places.enter(FLEX)
            return backend
        return await self._wait_in_queue(key, FLEX, waited, begun=True)

    async def ensure(self) -> Address:
        """Starts the engine if need be and returns its address. Raises what `join` raises."""
        await self.join()
        address = self._engine.running_at
        self.leave()
        assert address is not None
        return address

    def enter(self, rank: int) -> None:
        """Counts a request that doesn't have to wait."""
        self.places.enter(rank)

    def leave(self, rank: int = DEFAULT) -> None:
        """Counts a request out that has joined with this rank."""
        places = self.places
        places.leave(rank)
        if self.backend is not None:
            self.has_answered = True
            if self.queue:
                self.serve()
        elif places.flexible:
            places.keep_flexible()
            if self._engine.accepting is not None:
                self.has_answered = True
                self.serve()
        if not places.in_flight:
            self._engine.emptied()

    def register_flexible(self, reply: Flexible, seat: EngineSeat) -> None:
        """Registers an answer that can be put aside for other requests."""
        self.places.register(reply, seat)
        self.backend = None
        if self._gives_way:
            self._put_aside(self.places.in_flight)

    def serve(self) -> None:
        """Lets in all that may go to the running engine."""
        self.refresh_backend()
        backend = self._engine.current_backend
        assert backend is not None
        for waiter in self.queue.serve(backend, self._free, all_but_flex=True):
            self.places.enter(waiter.rank)

    def refresh_backend(self) -> None:
        """Sets `backend` again, after a change of `places.flexible` or of whether the engine accepts."""
        self.backend = None if self.places.flexible else self._engine.accepting

    def require_join(self) -> None:
        """From now on, no request may go to the engine at once."""
        self.backend = None

    def give_way(self, whether: bool) -> None:
        """Whether all answers that can be put aside are put aside, now and as they come."""
        self._gives_way = whether
        if whether and self.places.flexible:
            self._put_aside(self.places.in_flight)

    def gone(self) -> None:
        """The engine's process has ended."""
        self.backend = None
        self.has_answered = self._gives_way = False
        self.places.gone()

    @property
    def _free(self) -> int:
        """The number of free slots."""
        return self.places.free(slots(self._engine.model))

    def _put_aside(self, count: int) -> list[asyncio.Task[None]]:
        return self.places.put_aside(count, self._engine.residency.limits.flex_max_wait_seconds)

    async def _wait_in_queue(self, key: object, rank: int, waited: float = 0.0, *, begun: bool = False) -> Backend:
        engine, limits = self._engine, self._engine.residency.limits
        if engine.startup.closed:
            raise ProviderModelNotLoaded(f"model {engine.model.name!r}: its former engine has ended", retry_after=1)
        patience = engine.load_seconds or RETRY_SECONDS
        if not begun:
            self.queue.check_room(engine.model.name, limits.queue_length, patience)
        waiter: Waiter[Backend] = self.queue.add(Waiter(key, rank, waited, begun=begun))
        ages: asyncio.TimerHandle | None = None
        seconds = limits.queue_timeout_seconds
        if rank == FLEX:
            left = max(0.0, limits.flex_max_wait_seconds - waited)
            seconds += left
            ages = asyncio.get_running_loop().call_later(left, self._age, waiter)
        if engine.accepting is None:
            engine.startup.begin()
        if rank < FLEX and engine.residency.claims:
            engine.residency.schedule()  # its claim may have become more urgent
        try:
            return await self.queue.wait(waiter, seconds)
        except BaseException as error:
            if waiter.served:
                self.leave(rank)
            if not isinstance(error, TimeoutError):
                raise
            keys = "engines.queue_timeout_seconds"
            if rank == FLEX:
                keys += " and flex_max_wait_seconds"
            raise ProviderModelNotLoaded(
                f"model {engine.model.name!r}: the request waited {seconds:g} s ({keys}): {_WAITED[engine.waits_for]}",
                code="queue_timeout",
                retry_after=RETRY_SECONDS,
            ) from None
        finally:
            if ages is not None:
                ages.cancel()
            engine.startup.give_up_unwanted()

    def _age(self, waiter: Waiter[Backend]) -> None:
        """Lets flex requests that have waited long enough count like any other."""
        waiter.aged = True
        if self._engine.accepting is not None:
            self.serve()


_WAITED: dict[Waiting | None, str] = {
    "memory": "other models use the memory, and their answers have not ended",
    "drain": "answers in flight have not ended",
    "back-off": "its engine has failed repeatedly",
    "load": "its engine is still loading",
    "place": "other requests were before it at the engine",
    None: "its engine was not ready",
}

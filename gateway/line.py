"""Where requests wait, whatever they wait for: one kind of line, and one order in which they go."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from gateway.errors import GatewayError, ProviderRateLimit
from gateway.observe.shares import has_share, tenant
from gateway.wire.chat import DEFAULT, FLEX, TIERS, rank_of
from gateway.wire.limits import Tier
from gateway.wire.progress import Progress, Waiting

T = TypeVar("T")

Tell = Callable[[Callable[[], str]], None]
"""Sets the progress of a request: takes a function that returns the text, as `Serving.tell` does."""

RETRY_SECONDS = 5.0
"""When a request that was refused may try again, if nothing tells it better."""
SOON_SECONDS = 1.0
"""A request that can begin to answer within this time goes before one that reads longer."""
OVERTAKEN_SECONDS = 10.0
"""For how long others may go before a request that reads longer."""


def ignore(_: Callable[[], str]) -> None:
    """Tells nobody."""


class Waiter(Generic[T]):
    """A request that waits. key: identifies it to its caller. rank: see `gateway.wire.chat.rank_of`. waited: seconds
    that it had waited before. begun: a part of its answer is there. reads: for how many seconds the engine will read
    its prompt. since: when it came, by time.monotonic. aged: a flex request has waited so long that it counts like any
    other. tenant: whose it is. granted: gets what it waits for.
    """

    __slots__ = ("aged", "begun", "granted", "key", "rank", "reads", "since", "tenant")

    def __init__(
        self, key: object = None, rank: int = DEFAULT, waited: float = 0.0, *, begun: bool = False, reads: float = 0.0
    ) -> None:
        self.key = key
        self.rank = rank
        self.begun = begun
        self.reads = reads
        self.aged = False
        self.tenant = tenant.get()
        self.since = time.monotonic() - waited
        self.granted: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    @property
    def served(self) -> bool:
        """Whether it has got what it waited for."""
        granted = self.granted
        return granted.done() and not granted.cancelled() and granted.exception() is None

    @property
    def lets_others_go(self) -> bool:
        """Whether all others go before it."""
        return self.rank == FLEX and not self.aged


def in_order(waiting: Iterable[Waiter[T]], now: float) -> list[Waiter[T]]:
    """The order in which they go. Flex requests go last; within each half, answers that have begun go first.

    Else, one that can begin soon goes before one that reads longer, until that one has waited for OVERTAKEN_SECONDS. Of
    those that are alike, the oldest goes first.
    """
    return sorted(
        waiting,
        key=lambda each: (
            each.lets_others_go,
            not each.begun,
            each.reads > SOON_SECONDS and now - each.since < OVERTAKEN_SECONDS,
            each.since,
        ),
    )


class Line(Generic[T]):
    """The requests that wait for one thing. It lists them in order of arrival, answers that were put aside first; they
    go `in_order`."""

    def __init__(self) -> None:
        self._waiting: list[Waiter[T]] = []
        self.going = 0
        """Requests that `serve` let go, and whose tasks haven't run since."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiter[T]]:
        return iter(self._waiting)

    @property
    def since(self) -> float:
        """When its oldest request came; now if it is empty."""
        return min((each.since for each in self), default=time.monotonic())

    @property
    def urgency(self) -> tuple[int, float] | None:
        """The best rank of its requests, and when the first of that rank came; None if it is empty."""
        return min(((each.rank, each.since) for each in self), default=None)

    @property
    def tiers(self) -> dict[Tier, int]:
        """How many of its requests have each service tier."""
        ranks = Counter(each.rank for each in self)
        return {tier: ranks[rank_of(tier)] for tier in TIERS}

    @property
    def begun(self) -> int:
        """How many of its requests are answers that were put aside."""
        return sum(each.begun for each in self)

    def check_room(self, model: str, maximum: int, retry_after: float) -> None:
        """Raises ProviderRateLimit if one more request of this tenant would be more than its share of `maximum`."""
        who = tenant.get()
        mine = sum(each.tenant == who for each in self)
        if not has_share(who, mine + 1, len(self) + 1, maximum):
            raise ProviderRateLimit(
                f"model {model!r}: {len(self)} requests are already waiting, {mine} of them this tenant's "
                "(engines.queue_length)",
                code="queue_full",
                retry_after=retry_after,
            )

    def add(self, waiter: Waiter[T]) -> Waiter[T]:
        self._waiting.insert(self.begun if waiter.begun else len(self), waiter)
        return waiter

    async def wait(self, waiter: Waiter[T], seconds: float) -> T:
        """What it waits for. Raises TimeoutError, and the error of `turn_away`. It leaves the line in any case."""
        try:
            async with asyncio.timeout(seconds):
                return await waiter.granted
        finally:
            self.going -= waiter.served
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def serve(self, what: T, places: int, *, all_but_flex: bool = False) -> list[Waiter[T]]:
        """Gives this to the next requests, as many as there are places, and returns them. all_but_flex: others need
        none."""
        waiting = [each for each in self if not each.granted.done()]
        if places > 0:
            waiting = in_order(waiting, time.monotonic())
        served = [each for at, each in enumerate(waiting) if at < places or (all_but_flex and not each.lets_others_go)]
        for each in served:
            each.granted.set_result(what)
        self.going += len(served)
        self._waiting = [each for each in self if not each.granted.done()]
        return served

    def turn_away(self, error: GatewayError) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.granted.done():
                each.granted.set_exception(error)

    def position(self, key: object) -> int | None:
        """The position of the request with this key, from 1; None if it doesn't wait."""
        return next((at for at, each in enumerate(self, 1) if each.key is key), None)

    def progress(
        self, key: object, phase: Waiting, loaded: float | None = None, held_by: tuple[str, ...] = ()
    ) -> Progress | None:
        """Of the request with this key; None if it doesn't wait. phase, loaded, held_by: see `Progress`."""
        position = self.position(key)
        return None if position is None else Progress(phase, position, len(self), loaded, self.waited(key), held_by)

    def waited(self, key: object) -> float:
        """Seconds that the request with this key has waited; 0 if it doesn't wait."""
        since = next((each.since for each in self if each.key is key), None)
        return 0.0 if since is None else time.monotonic() - since

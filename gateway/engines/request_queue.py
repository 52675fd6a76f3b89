"""Requests that wait for their engine."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import Struct

from gateway.backends import Backend
from gateway.errors import GatewayError, ProviderRateLimit
from gateway.observe.shares import has_share, tenant
from gateway.wire.chat import DEFAULT, FLEX, TIERS, rank_of
from gateway.wire.limits import Tier


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


class Ticket:
    """A request that waits. key: identifies it to its caller. rank: see `gateway.wire.chat.rank_of`. waited: seconds
    that it had waited before. begun: a part of its answer is there. aged: a flex request has waited so long that it
    counts like any other. tenant: whose it is.
    """

    __slots__ = ("aged", "begun", "granted", "key", "rank", "since", "tenant")

    def __init__(self, key: object, rank: int = DEFAULT, waited: float = 0.0, *, begun: bool = False) -> None:
        self.key = key
        self.rank = rank
        self.begun = begun
        self.aged = False
        self.tenant = tenant.get()
        self.since = time.monotonic() - waited
        self.granted: asyncio.Future[Backend] = asyncio.get_running_loop().create_future()

    @property
    def served(self) -> bool:
        """Whether it has got its backend, and counts as in flight."""
        granted = self.granted
        return granted.done() and not granted.cancelled() and granted.exception() is None


class RequestQueue:
    """The requests that wait for one engine, in order of arrival, with answers that were put aside in front.

    `serve` takes all but flex requests before those.
    """

    def __init__(self) -> None:
        self._tickets: list[Ticket] = []

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._tickets)

    @property
    def since(self) -> float:
        """When its oldest request came; now if it is empty."""
        return min((ticket.since for ticket in self._tickets), default=time.monotonic())

    @property
    def urgency(self) -> tuple[int, float] | None:
        """The best rank of its requests, and when the first of that rank came; None if it is empty."""
        return min(((ticket.rank, ticket.since) for ticket in self._tickets), default=None)

    @property
    def tiers(self) -> dict[Tier, int]:
        """How many of its requests have each service tier."""
        ranks = Counter(ticket.rank for ticket in self._tickets)
        return {tier: ranks[rank_of(tier)] for tier in TIERS}

    @property
    def begun(self) -> int:
        """How many of its requests are answers that were put aside."""
        return sum(ticket.begun for ticket in self._tickets)

    def add(
        self,
        key: object,
        model: str,
        maximum: int,
        retry_after: float,
        rank: int = DEFAULT,
        waited: float = 0.0,
        *,
        begun: bool = False,
    ) -> Ticket:
        """begun: see `Ticket`. Raises ProviderRateLimit if `maximum` requests wait already, unless it has begun."""
        if begun:
            ticket = Ticket(key, rank, waited, begun=True)
            self._tickets.insert(self.begun, ticket)
            return ticket
        who = tenant.get()
        mine = sum(ticket.tenant == who for ticket in self._tickets)
        if not has_share(who, mine + 1, len(self) + 1, maximum):
            raise ProviderRateLimit(
                f"model {model!r}: {len(self)} requests are already waiting, {mine} of them this tenant's "
                "(engines.queue_length)",
                code="queue_full",
                retry_after=retry_after,
            )
        ticket = Ticket(key, rank)
        self._tickets.append(ticket)
        return ticket

    async def wait(self, ticket: Ticket, seconds: float) -> Backend:
        """Raises TimeoutError, and the error of `turn_away`. The ticket leaves the queue in any case."""
        try:
            async with asyncio.timeout(seconds):
                return await ticket.granted
        finally:
            if ticket in self._tickets:
                self._tickets.remove(ticket)

    def serve(self, backend: Backend, places: int) -> list[Ticket]:
        """Hands `backend` to all waiting requests, to flex ones only while `places` are left; returns the tickets."""
        waiting = [ticket for ticket in self._tickets if not ticket.granted.done()]
        first = [ticket for ticket in waiting if ticket.rank != FLEX or ticket.aged]
        flex = [ticket for ticket in waiting if ticket not in first]
        served = first + flex[: max(0, places - len(first))]
        self._tickets = [ticket for ticket in waiting if ticket not in served]
        for ticket in served:
            ticket.granted.set_result(backend)
        return served

    def turn_away(self, error: GatewayError) -> None:
        tickets, self._tickets = self._tickets, []
        for ticket in tickets:
            if not ticket.granted.done():
                ticket.granted.set_exception(error)

    def place(self, key: object) -> int | None:
        """The position of the request with this key, from 1; None if it doesn't wait."""
        return next((at for at, ticket in enumerate(self, 1) if ticket.key is key), None)

    def waited(self, key: object) -> float:
        """Seconds that the request with this key has waited; 0 if it doesn't wait."""
        since = next((ticket.since for ticket in self if ticket.key is key), None)
        return 0.0 if since is None else time.monotonic() - since

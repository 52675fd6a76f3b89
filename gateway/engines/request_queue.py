"""Requests that wait for their engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from gateway.backends import Backend
from gateway.errors import GatewayError, ProviderRateLimit

Waiting = Literal["memory", "drain", "back-off", "load"]
"""What a request waits for: memory that other engines hold, the end of answers in flight in the engine itself, the next
try of a failed engine, or the loading of the weights."""


class Progress(Struct, frozen=True):
    """How far a request that waits for its engine has come.

    position: its place in the queue, from 1. waiting: requests in the queue. loaded: the part of the engine's memory
    that is filled, 0 to 1; None unless the engine is loading and its size is known.
    """

    phase: Waiting
    position: int
    waiting: int
    loaded: float | None

    def __str__(self) -> str:
        """The text of a stream's comment."""
        if self.phase == "load":
            return "loading" if self.loaded is None else f"loading percent={min(99, int(100 * self.loaded))}"
        return f"queued for={self.phase} position={self.position} waiting={self.waiting}"


class Ticket:
    """A request that waits. key: identifies it to its caller."""

    __slots__ = ("granted", "key", "since")

    def __init__(self, key: object) -> None:
        self.key = key
        self.since = time.monotonic()
        self.granted: asyncio.Future[Backend] = asyncio.get_running_loop().create_future()

    @property
    def served(self) -> bool:
        """It has its backend, and counts as in flight."""
        granted = self.granted
        return granted.done() and not granted.cancelled() and granted.exception() is None


class RequestQueue:
    """The requests that wait for one engine, the oldest first."""

    def __init__(self) -> None:
        self._tickets: list[Ticket] = []

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._tickets)

    @property
    def since(self) -> float:
        """When its oldest request came; now if it is empty."""
        return self._tickets[0].since if self._tickets else time.monotonic()

    def add(self, key: object, model: str, most: int, retry_after: float) -> Ticket:
        """Raises ProviderRateLimit if `most` requests wait already."""
        if len(self) >= most:
            raise ProviderRateLimit(
                f"model {model!r}: {len(self)} requests wait already (engines.queue_length)",
                code="queue_full",
                retry_after=retry_after,
            )
        ticket = Ticket(key)
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

    def serve(self, backend: Backend) -> int:
        """Hands `backend` to all that wait; returns how many requests that is."""
        waiting = self._take()
        for ticket in waiting:
            ticket.granted.set_result(backend)
        return len(waiting)

    def turn_away(self, error: GatewayError) -> None:
        for ticket in self._take():
            ticket.granted.set_exception(error)

    def place(self, key: object) -> int | None:
        """The place of the request with this key, from 1; None if it doesn't wait."""
        return next((at for at, ticket in enumerate(self, 1) if ticket.key is key), None)

    def _take(self) -> list[Ticket]:
        tickets, self._tickets = self._tickets, []
        return [ticket for ticket in tickets if not ticket.granted.done()]

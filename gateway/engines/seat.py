"""A flex answer's place at its engine: puts the answer aside, and lets it rejoin the queue."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Protocol

from gateway.backends import Backend
from gateway.backends.base import Flexible
from gateway.wire.chat import FLEX
from gateway.wire.progress import Progress


class RequestsForSeat(Protocol):
    """`gateway.engines.requests.EngineRequests` as a seat sees it."""

    def enter(self, rank: int) -> None: ...
    def leave(self, rank: int = ...) -> None: ...
    async def join_again(self, key: object, waited: float) -> Backend: ...
    def register_flexible(self, reply: Flexible, seat: EngineSeat) -> None: ...


class EngineSeat:
    """See `gateway.backends.base.Seat`. key: of the request. waited: seconds, all waits together. progress: how far the
    request with a key is; None if it doesn't wait."""

    def __init__(
        self, requests: RequestsForSeat, key: object, waited: float, progress: Callable[[object], Progress | None]
    ) -> None:
        self.waited = waited
        self._requests = requests
        self._progress = progress
        self._key = key
        self._left = 0.0

    def leave(self) -> None:
        self._left = monotonic()
        self._requests.leave(FLEX)

    async def join(self) -> Backend:
        backend = await self._requests.join_again(self._key, self.waited)
        self.waited += monotonic() - self._left
        return backend.flexible() or backend

    def count_in(self) -> None:
        self._requests.enter(FLEX)

    def taken(self, reply: Flexible) -> None:
        self._requests.register_flexible(reply, self)

    def describe(self) -> str:
        return str(self._progress(self._key) or "")

"""A flex answer's place at its engine: puts the answer aside, and lets it rejoin the queue."""

from __future__ import annotations

from time import monotonic
from typing import Protocol

from gateway.backends import Backend
from gateway.backends.base import Flexible
from gateway.wire.chat import FLEX


class Host(Protocol):
    """What it takes of `gateway.engines.engine.Engine`."""

    def enter(self, rank: int) -> None: ...
    def leave(self, rank: int = ...) -> None: ...
    async def join_again(self, key: object, waited: float) -> Backend: ...
    def hosts(self, reply: Flexible, seat: EngineSeat) -> None: ...
    def progress(self, key: object) -> object: ...


class EngineSeat:
    """See `gateway.backends.base.Seat`. key: of the request, for `Engine.progress`. waited: seconds, all waits
    together."""

    def __init__(self, engine: Host, key: object, waited: float) -> None:
        self.waited = waited
        self._engine = engine
        self._key = key
        self._left = 0.0

    def leave(self) -> None:
        self._left = monotonic()
        self._engine.leave(FLEX)

    async def join(self) -> Backend:
        backend = await self._engine.join_again(self._key, self.waited)
        self.waited += monotonic() - self._left
        return backend.flexible() or backend

    def back(self) -> None:
        self._engine.enter(FLEX)

    def taken(self, reply: Flexible) -> None:
        self._engine.hosts(reply, self)

    def describe(self) -> str:
        return str(self._engine.progress(self._key) or "")

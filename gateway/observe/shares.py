"""What tenants share: none of them takes all of it, and they take turns, however much each of them wants."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from threading import Lock
from time import monotonic
from typing import Any, Generic, TypeVar

T = TypeVar("T")

OWNER = "local"
"""The tenant of the owner of this machine, who may have all."""
tenant: ContextVar[str] = ContextVar("tenant", default=OWNER)
"""Whose request it is that runs; the owner's, too, where it is nobody's."""


def has_share(who: str, mine: int, taken: int, maximum: int) -> bool:
    """Whether a tenant may have `mine` of a pool of `maximum`, of which `taken` are in use then.

    It must leave as much free as it has, so that a second tenant always finds room; the only place of all is anybody's.
    """
    return taken <= maximum and (who == OWNER or mine <= max(1, maximum - taken))


class Tally:
    """How many there are of each tenant."""

    def __init__(self) -> None:
        self._by: Counter[str] = Counter()

    @property
    def all(self) -> int:
        return self._by.total()

    def has_room(self, maximum: int) -> bool:
        """For one more of the tenant whose request runs."""
        who = tenant.get()
        return has_share(who, self._by[who] + 1, self.all + 1, maximum)

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Of the tenant whose request runs, meanwhile."""
        who = tenant.get()
        self._by[who] += 1
        try:
            yield
        finally:
            self._by[who] -= 1


class Turns(Generic[T]):
    """Who is next: of the tenants that may begin more, the one whose last turn is longest ago. None but the owner may
    have begun more than half of `maximum`, or one. What one tenant asked for begins in its order."""

    def __init__(self, maximum: int) -> None:
        self._share = max(1, maximum // 2)
        self._lines: dict[str, deque[T]] = {}
        """What each tenant waits for; the tenant whose turn is next comes first."""
        self._begun: Counter[str] = Counter()

    def add(self, wanted: T) -> None:
        self._lines.setdefault(tenant.get(), deque()).append(wanted)

    def begin(self) -> tuple[str, T] | None:
        """The next one, and whose it is; None if none may begin. `end` counts it out again."""
        who = next(filter(self._may, self._lines), None)
        if who is None:
            return None
        line = self._lines.pop(who)
        wanted = line.popleft()
        if line:
            self._lines[who] = line  # behind the others
        self._begun[who] += 1
        return who, wanted

    def end(self, who: str) -> None:
        self._begun[who] -= 1

    def due(self) -> list[deque[T]]:
        """What waits, but for that of tenants which have begun their share."""
        return [line for who, line in self._lines.items() if self._may(who)]

    def _may(self, who: str) -> bool:
        return who == OWNER or self._begun[who] < self._share


class TenantPlaces:
    """Room for `maximum` at a time, for which tenants take turns."""

    def __init__(self, maximum: int) -> None:
        self._turns: Turns[asyncio.Future[None]] = Turns(maximum)
        self._free = maximum

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Waits for one, and has it meanwhile."""
        who = await self.take()
        try:
            yield
        finally:
            self.leave(who)

    async def take(self) -> str:
        """Waits for one; whose it is, for `leave`."""
        who, turn = tenant.get(), asyncio.get_running_loop().create_future()
        self._turns.add(turn)
        self._begin()
        try:
            await turn
        except BaseException:
            if not turn.cancelled():  # its turn came as it left
                self.leave(who)
            raise
        return who

    def leave(self, who: str) -> None:
        self._free += 1
        self._turns.end(who)
        self._begin()

    def _begin(self) -> None:
        while self._free and (found := self._turns.begin()) is not None:
            who, turn = found
            if turn.done():  # whoever waited has left
                self._turns.end(who)
            else:
                self._free -= 1
                turn.set_result(None)


@dataclass(frozen=True, slots=True)
class _Piece:
    came: float
    done: Future[Any]
    work: Callable[[], Any]


class Workers(ThreadPoolExecutor):
    """Threads for which tenants take turns."""

    def __init__(
        self, maximum: int | None = None, *, name: str = "worker", now: Callable[[], float] = monotonic
    ) -> None:
        """maximum: the number of threads; None: as many as ThreadPoolExecutor takes."""
        super().__init__(maximum, thread_name_prefix=name)
        self._now = now
        self._lock = Lock()
        self._turns: Turns[_Piece] = Turns(self._max_workers)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        piece = _Piece(self._now(), Future(), partial(fn, *args, **kwargs))
        with self._lock:
            super().submit(self._work)
            self._turns.add(piece)
        return piece.done

    def waiting(self) -> float:
        """Seconds for which the oldest piece of work has waited, but for that of tenants who use their share; 0 if none
        does."""
        now = self._now()
        with self._lock:
            lines = self._turns.due()
            oldest = [next((each.came for each in line if not each.done.cancelled()), now) for line in lines]
        return now - min(oldest, default=now)

    def _work(self) -> None:
        """Does a piece, and then what had to wait for it."""
        while (found := self._begin()) is not None:
            who, piece = found
            _finish(piece)
            del found, piece  # of an error, its traceback keeps this frame
            with self._lock:
                self._turns.end(who)

    def _begin(self) -> tuple[str, _Piece] | None:
        with self._lock:
            return self._turns.begin()


def _finish(piece: _Piece) -> None:
    if not piece.done.set_running_or_notify_cancel():
        return
    try:
        piece.done.set_result(piece.work())
    except BaseException as error:  # noqa: BLE001 - whoever waits for it raises it
        piece.done.set_exception(error)
        del piece  # as above

"""Threads for work that may take long, in which each tenant has a share."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from threading import Lock
from time import monotonic
from typing import Any, TypeVar

T = TypeVar("T")

tenant: ContextVar[str] = ContextVar("tenant", default="local")
"""Whose request it is that runs; the default: of the owner of this machine, or of nobody."""
OWNER = tenant.get()


@dataclass(frozen=True, slots=True)
class _Piece:
    came: float
    done: Future[Any]
    work: Callable[[], Any]


class Workers(ThreadPoolExecutor):
    """Tenants take turns, however much work each of them has, and none but the owner has more than half of the threads
    at once. The work of one tenant begins in the order in which it came."""

    def __init__(self, most: int | None = None, *, name: str = "worker", now: Callable[[], float] = monotonic) -> None:
        """most: the number of threads; None: as many as ThreadPoolExecutor takes."""
        super().__init__(most, thread_name_prefix=name)
        self._share = max(1, self._max_workers // 2)
        self._now = now
        self._lock = Lock()
        self._lines: dict[str, deque[_Piece]] = {}
        """The work of each tenant that waits; the tenant whose turn is next comes first."""
        self._busy: Counter[str] = Counter()
        """The threads that work for each tenant."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        piece = _Piece(self._now(), Future(), partial(fn, *args, **kwargs))
        with self._lock:
            super().submit(self._work)
            self._lines.setdefault(tenant.get(), deque()).append(piece)
        return piece.done

    def waiting(self) -> float:
        """Seconds for which the oldest piece of work has waited, but for that of tenants who use their share; 0 if none
        does."""
        now = self._now()
        with self._lock:
            lines = [line for who, line in self._lines.items() if self._may(who)]
            oldest = [next((piece.came for piece in line if not piece.done.cancelled()), now) for line in lines]
        return now - min(oldest, default=now)

    def _may(self, who: str) -> bool:
        return who == OWNER or self._busy[who] < self._share

    def _work(self) -> None:
        """Does a piece, and then what had to wait for it."""
        while (found := self._begin()) is not None:
            who, piece = found
            _finish(piece)
            del found, piece  # of an error, its traceback keeps this frame
            with self._lock:
                self._busy[who] -= 1

    def _begin(self) -> tuple[str, _Piece] | None:
        """The next piece that may begin."""
        with self._lock:
            who = next(filter(self._may, self._lines), None)
            if who is None:
                return None
            line = self._lines.pop(who)
            piece = line.popleft()
            if line:
                self._lines[who] = line  # behind the others
            self._busy[who] += 1
            return who, piece


def _finish(piece: _Piece) -> None:
    if not piece.done.set_running_or_notify_cancel():
        return
    try:
        piece.done.set_result(piece.work())
    except BaseException as error:  # noqa: BLE001 - whoever waits for it raises it
        piece.done.set_exception(error)
        del piece  # as above

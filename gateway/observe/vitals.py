"""The health of the gateway itself: how late its event loop is, and how long work waits for a thread."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from gateway.observe.shares import Workers

LATE_SECONDS = 1.0
"""An event loop that is later than this, or work that waits longer for a thread, makes the gateway `degraded`."""
WINDOW_SECONDS = 10.0


class Lag:
    """How late the event loop is. Its owner calls `tick` every `every` seconds, as well as the loop can."""

    def __init__(self, every: float, now: Callable[[], float] = monotonic) -> None:
        self._every = every
        self._now = now
        self._due: float | None = None
        self._begun = now()
        self._longest = self._before = 0.0

    def tick(self) -> None:
        now = self._now()
        if now - self._begun > WINDOW_SECONDS:
            self._before, self._longest, self._begun = self._longest, 0.0, now
        self._longest = max(self._longest, self._late(now))
        self._due = now + self._every

    def longest(self) -> float:
        """Seconds: the longest delay of the last WINDOW_SECONDS to twice that, up to now."""
        return max(self._before, self._longest, self._late(self._now()))

    def _late(self, now: float) -> float:
        return 0.0 if self._due is None else max(0.0, now - self._due)


class Vitals:
    """workers: None before the server has started, and for an application that another server runs."""

    def __init__(self, every: float = 0.1) -> None:
        self.lag = Lag(every)
        self.workers: Workers | None = None

    def problems(self) -> list[str]:
        """Why the gateway can't keep up, for people."""
        found = []
        if (late := self.lag.longest()) > LATE_SECONDS:
            found.append(f"the event loop was {late:.1f} s late")
        if self.workers is not None and (waiting := self.workers.waiting()) > LATE_SECONDS:
            found.append(f"all worker threads are busy: work has waited for {waiting:.1f} s")
        return found

"""The clock for expiry: a jump of the wall clock doesn't expire anything."""

from __future__ import annotations

import time
from collections.abc import Callable


def elapsed() -> float:
    """Elapsed seconds, including those in which the machine sleeps if the system counts them."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)  # Linux alone has it
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class Clock:
    """Compares the wall clock with the time since this object was made."""

    def __init__(self, wall: Callable[[], float] | None = None, elapsed: Callable[[], float] = elapsed) -> None:
        self._wall = wall or time.time
        self._elapsed = elapsed
        self._began = self._wall() - elapsed()

    def now(self) -> float:
        """Seconds since 1970 by which things expire: never ahead of the time that has passed."""
        return min(self._wall(), self._began + self._elapsed())

    def behind(self) -> float:
        """How many seconds the wall clock was set back, to date what is created meanwhile."""
        return max(0.0, self._began + self._elapsed() - self._wall())

"""When a failed engine may be started again. No I/O: the time is passed in."""

from __future__ import annotations

SECONDS = (0.25, 60.0)
"""The delay after the second failure in a row, doubled each time, and the longest one."""
MAX_DOUBLINGS = 30
"""Keeps the power of two small, however often an engine fails."""


class BackOff:
    """Counts failures in a row. The first is tried again at once, later ones after growing delays."""

    def __init__(self) -> None:
        self.failures = 0
        self._until = 0.0

    def failed(self, now: float) -> None:
        self.failures += 1
        doublings = self.failures - 2
        first, longest = SECONDS
        delay = 0.0 if doublings < 0 else min(first * 2.0 ** min(doublings, MAX_DOUBLINGS), longest)
        self._until = now + delay

    def reset(self) -> None:
        """The engine has served: the next failure is the first one again."""
        self.failures = 0

    def left(self, now: float) -> float:
        """Seconds until the next try, 0 at least."""
        return max(0.0, self._until - now)

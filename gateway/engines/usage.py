"""What a process uses, sampled at most four times a second."""

from __future__ import annotations

import time

from gateway.engines import memory
from gateway.engines.memory import ProcessUsage

USAGE_SECONDS = 0.25
"""How old a figure may be: each measurement takes milliseconds."""


class UsageSampler:
    def __init__(self) -> None:
        self._seen: tuple[float, int | None, ProcessUsage | None] = 0.0, None, None

    def of(self, pid: int | None) -> ProcessUsage | None:
        """None if there is no such process."""
        if pid is None:
            return None
        now = time.monotonic()
        if pid != self._seen[1] or now - self._seen[0] >= USAGE_SECONDS:
            self._seen = now, pid, memory.usage(pid)
        return self._seen[2]

"""Failures to save prompts: counted, told once, and followed by a pause."""

from __future__ import annotations

import logging
import time

log = logging.getLogger("ctxgate")

PAUSE_SECONDS = 60.0
"""Pause after a failure to save, such as a full disk."""


class Troubles:
    """count: failures since the start."""

    def __init__(self) -> None:
        self.count = 0
        self._paused_until = 0.0
        self._told: set[str] = set()

    @property
    def paused(self) -> bool:
        return time.monotonic() < self._paused_until

    def failed(self, error: Exception) -> None:
        """Stops saving for a while; logs that the first time."""
        self._paused_until = time.monotonic() + PAUSE_SECONDS
        self.note(
            f"can't save prompts, goes on without: {str(error) or type(error).__name__}", once=type(error).__name__
        )

    def note(self, message: str, once: str) -> None:
        """A failure that stops nothing."""
        self.count += 1
        self.tell(message, once=once)

    def tell(self, message: str, *, once: str | None = None) -> None:
        """Logs a message the first time. once: what it is about, if its text varies."""
        if (about := once or message) not in self._told:
            self._told.add(about)
            log.warning("%s", message)

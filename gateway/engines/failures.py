"""When an engine that has failed may start again."""

from __future__ import annotations

import asyncio
import time

from gateway.errors import Backoff, GatewayError

BACK_OFF = Backoff(0.25, 60.0)
"""Pauses after the second failure in a row and later ones. After the first, the engine starts again at once."""
WAITED_SECONDS = 5.0
"""Requests wait for a back-off of up to this length; during a longer one, they get the failure at once."""


class Failures:
    """in_a_row: failures since a request was answered. not_before: the earliest next start, by time.monotonic."""

    def __init__(self) -> None:
        self.in_a_row = 0
        self.not_before = 0.0

    def add(self) -> None:
        """Counts a failure, and postpones the next start."""
        self.in_a_row += 1
        self.not_before = time.monotonic() + BACK_OFF.delay(self.in_a_row - 1)

    def forget(self) -> None:
        self.in_a_row = 0

    async def wait(self, last: GatewayError | None) -> None:
        """Returns when the next start may begin. Raises the last failure if that takes long."""
        left = self.not_before - time.monotonic()
        if left > WAITED_SECONDS and last is not None:
            raise type(last)(last.message, code=last.code, retry_after=left, status=last.status, details=last.details)
        if left > 0:
            await asyncio.sleep(left)

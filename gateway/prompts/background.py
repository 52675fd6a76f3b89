"""Work that answers leave behind, such as saving."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

from gateway.prompts.protocols import TROUBLE

log = logging.getLogger("ctxgate")


class Background:
    """For one engine. model: its name, for the log."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Logs an error of TROUBLE instead of raising it."""
        task = asyncio.create_task(self._quietly(work), name=f"prompts of {self._model}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def done(self) -> None:
        """Returns once nothing is left to do."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _quietly(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except TROUBLE as error:
            log.debug("model %s: its prompts: %s", self._model, error)

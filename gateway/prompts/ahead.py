"""Checks files before a request needs them."""

from __future__ import annotations

import asyncio
import contextlib

from gateway.prompts.folder import Damaged, Folder
from gateway.prompts.index import Saved

MAX_AHEAD = 1024 * 1024 * 1024
"""The largest file to check before a request needs it: about a second's work."""


class ChecksAhead:
    """For one folder."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._going: dict[str, asyncio.Task[None]] = {}

    def begin(self, saved: Saved) -> None:
        """Checks a file in the background, unless that would take long."""
        if saved.size <= MAX_AHEAD and saved.name not in self._going:
            task = self._going[saved.name] = asyncio.create_task(self._check(saved), name=f"check {saved.name}")
            task.add_done_callback(lambda _: self._going.pop(saved.name))

    async def done(self, saved: Saved) -> None:
        """Returns once no check of the file is under way."""
        if (task := self._going.get(saved.name)) is not None:
            await asyncio.wait({task})

    async def _check(self, saved: Saved) -> None:
        with contextlib.suppress(Damaged, OSError):  # `SavedPrompts.file` tells it if a request comes for it
            await asyncio.to_thread(self._folder.check, saved)

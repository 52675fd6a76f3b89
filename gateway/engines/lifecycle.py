"""The state of one engine, and the watchers of its changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from gateway.engines.states import Event, State, after


class Lifecycle:
    """entered: when the present state began, by time.monotonic."""

    def __init__(self) -> None:
        self.state: State = "stopped"
        self.entered = time.monotonic()
        self._changed = asyncio.Event()
        self._watchers: list[Callable[[], None]] = []

    def to(self, event: Event) -> None:
        """Raises ImpossibleTransition if the event can't happen in this state."""
        self.state = after(self.state, event)
        self.entered = time.monotonic()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for watcher in self._watchers:
            watcher()

    async def changed(self) -> None:
        """Waits for the next change of the state."""
        await self._changed.wait()

    def on_change(self, watcher: Callable[[], None]) -> None:
        """Calls `watcher` after each change of the state. It must not wait or raise."""
        self._watchers.append(watcher)

"""The requests of one model whose answers aren't complete."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gateway.wire.chat import QUEUED, ChatRequest

if TYPE_CHECKING:
    from gateway.core.run import Run


class InFlight:
    """runs: answers in progress. waiting: chats that wait for their engine, and since when, by time.monotonic. opening:
    requests that no engine has accepted yet, the `waiting` ones included, and since when; each is a ChatRequest or a
    key of its own.
    """

    def __init__(self) -> None:
        self.runs: set[Run] = set()
        self.waiting: dict[ChatRequest, float] = {}
        self.opening: dict[object, float] = {}
        self._in_line = 0
        self._watchers: list[Callable[[], None]] = []

    @property
    def count(self) -> int:
        return len(self.opening) + len(self.runs)

    @property
    def flex(self) -> int:
        """Answers in progress to flex requests."""
        return sum(run.flex for run in self.runs)

    def queued(self) -> list[tuple[ChatRequest, float]]:
        """Chats that their engine could take, but for a slot or a prefix that it reads; and since when."""
        joining = {request.serving for request in self.waiting}
        chats = [(one, since) for one, since in self.opening.items() if isinstance(one, ChatRequest)]
        return [
            (chat, since)
            for chat, since in chats
            if chat.serving not in joining and chat.serving.describe().startswith(QUEUED)
        ]

    def on_end(self, watcher: Callable[[], None]) -> None:
        """Calls `watcher` at least once after each request that ends. It must not wait or raise."""
        self._watchers.append(watcher)

    @contextmanager
    def in_line(self) -> Iterator[None]:
        """Around the wait of a flex request before an external server, and what follows: `none_left` waits for it."""
        self._in_line += 1
        try:
            yield
        finally:
            self._in_line -= 1
            self.ended()

    def hold(self, request: object, since: float) -> None:
        """Counts a request in, until `release` or `accepted`."""
        self.opening[request] = since

    def release(self, request: object) -> None:
        del self.opening[request]
        self.ended()

    def accepted(self, request: object, run: Run) -> None:
        """Moves a request that an engine has accepted from `opening` to `runs`."""
        self.runs.add(run)
        del self.opening[request]

    def ended(self) -> None:
        """Tells those that wait for the end of a request."""
        for watcher in self._watchers:
            watcher()

    async def none_left(self) -> None:
        """Returns once no request is left."""
        empty = asyncio.Event()
        self.on_end(lambda: None if self.count or self._in_line else empty.set())
        if self.count or self._in_line:
            await empty.wait()

"""SSE progress and keep-alive comments, which every client of server-sent events ignores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from gateway.server.asgi import Headers
from gateway.wire.chat import CALLING, PUT_ASIDE

SSE_HEADERS: Headers = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)

EVERY_SECONDS = 1.0
"""How often a waiting request is checked for progress; unchanged progress sends no comment."""

KEEP_ALIVE = "keep-alive"


class StreamClient(Protocol):
    """The client of a stream. wrote: each write sets it, KeepAlive clears it."""

    wrote: bool

    async def start(self, headers: Headers) -> None: ...

    async def write(self, data: bytes) -> None: ...


class KeepAlive:
    """The comments of one stream. The first comes after `progress_after` seconds; a faster stream costs one timer.

    progress: the present progress as text; once the answer has begun only that of a held call, or of an
    answer that was put aside, is reported.
    keep_alive: seconds of silence before a keep-alive comment. ping: bytes to write with each comment that comes after
    the answer has begun, for clients that don't count comments as life.
    started: the response's head was sent, or is about to be, so that an error can no longer be a status.
    """

    __slots__ = (
        *("_answering", "_client", "_keep_alive", "_ping", "_progress", "_sent", "_silent", "_task"),
        *("_timer", "started"),
    )

    def __init__(
        self,
        client: StreamClient,
        progress: Callable[[], str],
        *,
        progress_after: float,
        keep_alive: float,
        ping: bytes = b"",
    ) -> None:
        self.started = False
        self._client = client
        self._progress = progress
        self._keep_alive = keep_alive
        self._ping = ping
        self._sent = ""
        self._silent = progress_after
        """Seconds since the last comment."""
        self._answering = False
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(progress_after, self._beat)

    async def begin(self, headers: Headers = SSE_HEADERS, first: bytes = b"") -> None:
        """Begins the answer: sends the head, unless a comment has, and then the answer's first bytes.

        The head has a write of its own: with the bytes in the same one, the first token came later
        (`benchmarks/RESULTS.md`). From now on only silence causes comments.
        """
        self._answering = True
        if self._task is not None:
            await self._task
        if not self.started:
            self.started = True
            await self._client.start(headers)
        if first:
            await self._client.write(first)

    @property
    def busy(self) -> bool:
        """Whether a comment is being written; await `settle` before you write."""
        return self._task is not None

    async def settle(self) -> None:
        """Waits until the comment in progress is written."""
        if self._task is not None:
            await self._task

    def close(self) -> None:
        """Starts no further comment. Idempotent."""
        self._timer.cancel()

    def _beat(self) -> None:
        if self._answering:
            wait = self._keep_alive
            progress = self._progress()
            urgent = progress.startswith((CALLING, PUT_ASIDE))
            comment = "" if self._client.wrote else progress if urgent else KEEP_ALIVE
            self._client.wrote = False
        else:
            wait = min(EVERY_SECONDS, self._keep_alive)
            comment = self._progress()
            if comment == self._sent:
                comment = KEEP_ALIVE if self._silent >= self._keep_alive else ""
            else:
                self._sent = comment
        self._silent = wait if comment else self._silent + wait
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(wait, self._beat)
        if comment and self._task is None:
            # Set before the task runs: an error in between must not send a second head.
            begins, self.started = not self.started, True
            self._task = loop.create_task(self._comment(comment, begins, self._ping if self._answering else b""))

    async def _comment(self, text: str, begins: bool, ping: bytes) -> None:
        try:
            if begins:
                await self._client.start(SSE_HEADERS)
            await self._client.write(b": ctxgate %b\n\n%b" % (text.encode(), ping))
        finally:
            self._task = None

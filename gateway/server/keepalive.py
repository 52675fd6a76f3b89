"""What a stream says while it has nothing to say: comments, which every client of server-sent events passes over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from gateway.server.asgi import Headers

SSE_HEADERS: Headers = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)

EVERY_SECONDS = 1.0
"""Between two looks at a request that waits; what hasn't changed isn't said again."""

KEEP_ALIVE = "keep-alive"


class Stream(Protocol):
    """What a pulse needs of a client. spoke: set with each write, cleared here."""

    spoke: bool

    async def start(self, headers: Headers) -> None: ...

    async def write(self, data: bytes) -> None: ...


class KeepAlive:
    """The comments of one stream, from `progress_after` seconds of waiting on.

    A stream that is quicker costs one timer. started: the head was sent, or is about to be, so an error has no status
    any more. keep_alive: seconds of silence until a comment that says nothing new.
    """

    __slots__ = ("_client", "_keep_alive", "_said", "_silent", "_speaking", "_standing", "_task", "_timer", "started")

    def __init__(
        self, client: Stream, standing: Callable[[], str], *, progress_after: float, keep_alive: float
    ) -> None:
        self.started = False
        self._client = client
        self._standing = standing
        self._keep_alive = keep_alive
        self._said = ""
        self._silent = progress_after
        """Seconds since anything was sent."""
        self._speaking = False
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(progress_after, self._beat)

    async def speak(self, headers: Headers = SSE_HEADERS) -> None:
        """The answer begins: sends the head if no comment has done so. From here on only silence is told of."""
        self._speaking = True
        await self.rest()
        if not self.started:
            self.started = True
            await self._client.start(headers)

    @property
    def busy(self) -> bool:
        """A comment is being written: `rest` before you write."""
        return self._task is not None

    async def rest(self) -> None:
        """Returns once no comment is being written."""
        if self._task is not None:
            await self._task

    def close(self) -> None:
        """No more comments; one that is being written is written. Idempotent."""
        self._timer.cancel()

    def _beat(self) -> None:
        if self._speaking:
            wait = self._keep_alive
            comment = "" if self._client.spoke else KEEP_ALIVE
            self._client.spoke = False
        else:
            wait = min(EVERY_SECONDS, self._keep_alive)
            comment = self._standing()
            if comment == self._said:
                comment = KEEP_ALIVE if self._silent >= self._keep_alive else ""
            else:
                self._said = comment
        self._silent = wait if comment else self._silent + wait
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(wait, self._beat)
        if comment and self._task is None:
            # From here on, not once the task runs: an error that comes between may not send a head of its own.
            begins, self.started = not self.started, True
            self._task = loop.create_task(self._comment(comment, begins))

    async def _comment(self, text: str, begins: bool) -> None:
        try:
            if begins:
                await self._client.start(SSE_HEADERS)
            await self._client.write(b": ctxgate %b\n\n" % text.encode())
        finally:
            self._task = None

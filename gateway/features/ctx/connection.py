"""One client of a Unix socket: frames in, frames out. Writing waits for a slow client."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import struct
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Literal

from msgspec import UNSET

from gateway.errors import GatewayError, InternalError, ProviderInvalidRequest
from gateway.features.ctx.errors import Busy, code
from gateway.features.ctx.events import Error, Pong, line
from gateway.features.ctx.execution import Ended
from gateway.features.ctx.frames import Cancel, Ping, Resume, Send, parse
from gateway.features.ctx.jsonl import LineReader
from gateway.features.ctx.objects import Triple
from gateway.features.ctx.temporary import Temporary
from gateway.services import Services

if TYPE_CHECKING:
    from gateway.features.ctx.sessions import Sessions

READ = 64 * 1024
WRITE_BUFFER = 64 * 1024
"""Bytes that may be buffered for a client. Beyond that a writer waits."""
MAX_FOLLOWING = 64
"""Runs and sessions that one connection may follow at a time."""
HANGUP_SECONDS = 0.25
"""How often to check whether a client that has closed its sending side is gone."""

log = logging.getLogger("ctxgate")

INTERNAL = InternalError("ctxgate failed; see its log")


class Wire:
    """Reads and writes the frames of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int) -> None:
        writer.transport.set_write_buffer_limits(high=WRITE_BUFFER)
        self._reader = reader
        self._writer = writer
        self._lines = LineReader(limit)
        self._turn = asyncio.Lock()

    async def frames(self) -> AsyncGenerator[bytes | Literal["too long"], None]:
        """Yields frames until the client closes its sending side. The last frame needs no newline."""
        while data := await self._received():
            for frame in self._lines.feed(data):
                yield frame
        if rest := self._lines.finish():
            yield rest

    async def packet(self, maximum: int) -> tuple[str, bytes]:
        """The next frame of a runner: its letter and its payload. maximum: bytes of the payload.

        Raises IncompleteReadError if the runner is gone, ProviderInvalidRequest for anything but a frame.
        """
        try:
            head = await self._reader.readuntil(b"\n")
            size = int(head[1:])
            if not 0 <= size <= maximum:
                raise ProviderInvalidRequest(f"the runner sent {size} bytes at once; the limit is {maximum}")
            return chr(head[0]), await self._reader.readexactly(size)
        except (ValueError, asyncio.LimitOverrunError):
            raise ProviderInvalidRequest(
                "the runner of this tree is from another version of ctxgate: run ctxgate ctx sync"
            ) from None
        except ConnectionError:
            raise asyncio.IncompleteReadError(b"", None) from None

    async def write(self, frames: list[bytes]) -> None:
        """Raises ConnectionError if the client is gone."""
        async with self._turn:
            self._writer.write(frames[0] if len(frames) == 1 else b"".join(frames))
            await self._writer.drain()

    async def gone(self) -> None:
        """Returns when a client that has closed its sending side has closed the other side, too."""
        end: socket.socket = self._writer.get_extra_info("socket")
        poll = select.poll()
        poll.register(end.fileno(), 0)
        while not self._writer.transport.is_closing() and not poll.poll(0):  # noqa: ASYNC110 - the loop has no event for it
            await asyncio.sleep(HANGUP_SECONDS)

    def hang_up(self) -> None:
        """Ends `frames`, as if the client had closed its sending side."""
        if not self._writer.transport.is_closing():
            self._writer.transport.pause_reading()  # type: ignore[attr-defined]
            self._reader.feed_eof()

    async def flush(self) -> None:
        """Returns when everything is sent. Raises ConnectionError if the client is gone."""
        if self._writer.transport.is_closing():
            return
        self._writer.transport.set_write_buffer_limits(high=0)
        async with self._turn:
            await self._writer.drain()

    def user(self) -> int:
        """The user id of the client's process, from the kernel; our own where the kernel doesn't say."""
        if sys.platform == "linux":
            end: socket.socket = self._writer.get_extra_info("socket")
            _, user, _ = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            return int(user)
        return os.geteuid()

    async def _received(self) -> bytes:
        try:
            return await self._reader.read(READ)
        except ConnectionError:
            return b""


class BaseConnection(ABC):
    """A client of an object's socket: reads requests, and follows what they start. wire, triple, user: the client's."""

    def __init__(self, wire: Wire, triple: Triple) -> None:
        self.wire = wire
        self.triple = triple
        self.user = wire.user()
        self.said_all = asyncio.Event()
        """Set once the client has closed its sending side."""
        self._following: dict[str, asyncio.Task[None]] = {}

    @abstractmethod
    async def send(self, request: Send) -> None: ...

    @abstractmethod
    async def resume(self, request: Resume) -> None: ...

    @abstractmethod
    async def cancel(self, request: Cancel) -> None: ...

    async def serve(self) -> None:
        try:
            async for frame in self.wire.frames():
                await self._handle(frame)
            self.said_all.set()
            # The client may have closed only its sending side, as `nc` does, and still wait for answers.
            if self._following:
                gone = asyncio.create_task(self.wire.gone())
                try:
                    while self._following and not gone.done():
                        await asyncio.wait({gone, *self._following.values()}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    gone.cancel()
        except ConnectionError:
            pass  # the client is gone; its runs continue
        finally:
            self.said_all.set()
            for task in self._following.values():
                task.cancel()

    async def _handle(self, frame: bytes | Literal["too long"]) -> None:
        client: str | None = None
        try:
            request = parse(frame)
            match request:
                case Ping():
                    await self.wire.write([line(Pong())])
                case Send(id=client):
                    await self.send(request)
                case Resume():
                    await self.resume(request)
                case Cancel():
                    await self.cancel(request)
        except GatewayError as error:
            await self.refuse(error, client)
        except ConnectionError:
            raise
        except Exception:
            log.exception("a frame for %s failed", self.triple.name)
            await self.refuse(INTERNAL, client)

    async def refuse(self, error: GatewayError, client: str | None) -> None:
        failed = Error(code=code(error), message=error.message, client_id=UNSET if client is None else client)
        await self.wire.write([line(failed)])

    def check_following(self) -> None:
        if len(self._following) >= MAX_FOLLOWING:
            raise Busy(f"a connection follows at most {MAX_FOLLOWING} runs at a time", retry_after=1)

    def follows(self, key: str) -> bool:
        return key in self._following

    def follow(self, key: str, frames: AsyncGenerator[list[bytes], None]) -> None:
        """Follows a session, instead of any earlier following of the same one."""
        self.unfollow(key)
        task = asyncio.create_task(self.copy(frames), name=f"follow {key}")
        self._following[key] = task

        def ended(task: asyncio.Task[None]) -> None:
            if self._following.get(key) is task:
                del self._following[key]

        task.add_done_callback(ended)

    def unfollow(self, key: str) -> None:
        earlier = self._following.pop(key, None)
        if earlier is not None:
            earlier.cancel()

    async def copy(self, frames: AsyncGenerator[list[bytes], None]) -> None:
        try:
            try:
                async with aclosing(frames):
                    async for some in frames:
                        await self.wire.write(some)
            except GatewayError as error:
                await self.refuse(error, None)
        except ConnectionError:
            pass  # the client is gone; `serve` notices, too
        except Exception:
            log.exception("following %s failed", self.triple.name)
            self.wire.hang_up()


class Connection(BaseConnection):
    """A client of a model's socket.

    It follows the runs that it started and the sessions that it resumed. Private and shared runs continue without it.
    sessions: imports the store on its first call.
    """

    def __init__(
        self, wire: Wire, triple: Triple, sessions: Callable[[], Awaitable[Sessions]], services: Services, ended: Ended
    ) -> None:
        super().__init__(wire, triple)
        self._sessions = sessions
        self._temporary = Temporary(services, triple, ended)

    async def send(self, request: Send) -> None:
        self.check_following()
        if request.scope == "temp":
            frames = self._temporary.send(request)
            if isinstance(frames, bytes):
                await self.wire.write([frames])
            else:
                self.follow(f"temp {request.session}", frames)
            return
        sessions = await self._sessions()
        live = await sessions.send(self.triple, self.user, request)
        if isinstance(live, bytes):
            await self.wire.write([live])
        else:
            first = live.first
            self.follow(str(live.session), sessions.follow(live.session, first - 1, first, live))

    async def resume(self, request: Resume) -> None:
        self.check_following()
        sessions = await self._sessions()
        session, after, last, going_on = await sessions.find(self.triple, self.user, request)
        self.unfollow(str(session))
        # Copied before the next frame is read: a ping's answer then marks the end of the recorded events.
        await self.copy(sessions.follow(session, after, last, None))
        if going_on is not None:
            self.follow(str(session), sessions.follow(session, last, last, going_on))

    async def cancel(self, request: Cancel) -> None:
        if self._temporary.cancel(request.id):
            return
        sessions = await self._sessions()
        live = sessions.active(self.triple, self.user, request)
        follows = self.follows(str(live.session))
        await sessions.cancel(live)
        if not follows:
            await self.wire.write([live.done])

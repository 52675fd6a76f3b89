"""One client of a Unix socket: frames in, frames out. Writing waits for a slow client."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import struct
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import UNSET

from gateway.ctx.errors import EXIT_CODES, GENERIC, Busy, code
from gateway.ctx.execution import Ended, Execution, fields_of, until
from gateway.ctx.frames import Cancel, Exec, Ping, Resume, Send, parse, parse_exec
from gateway.ctx.objects import ObjectName, Triple
from gateway.ctx.temporary import Temporary
from gateway.errors import GatewayError, InternalError
from gateway.services import Services
from gateway.wire.events import Done, Error, Event, Pong, Status, line
from gateway.wire.jsonl import LineReader

if TYPE_CHECKING:
    from gateway.ctx.sessions import Sessions

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


class Connection:
    """A client of an object's socket.

    It follows the runs that it started and the sessions that it resumed. Private and shared runs continue without it.
    sessions: imports the store on its first call.
    """

    def __init__(
        self, wire: Wire, triple: Triple, sessions: Callable[[], Awaitable[Sessions]], services: Services, ended: Ended
    ) -> None:
        self._wire = wire
        self._triple = triple
        self._sessions = sessions
        self._user = wire.user()
        self._following: dict[str, asyncio.Task[None]] = {}
        self._temporary = Temporary(services, triple, ended)

    async def serve(self) -> None:
        try:
            async for frame in self._wire.frames():
                await self._handle(frame)
            # The client may have closed only its sending side, as `nc` does, and still wait for answers.
            if self._following:
                gone = asyncio.create_task(self._wire.gone())
                try:
                    while self._following and not gone.done():
                        await asyncio.wait({gone, *self._following.values()}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    gone.cancel()
        except ConnectionError:
            pass  # the client is gone; its runs continue
        finally:
            for task in self._following.values():
                task.cancel()

    async def _handle(self, frame: bytes | Literal["too long"]) -> None:
        client: str | None = None
        try:
            request = parse(frame)
            match request:
                case Ping():
                    await self._wire.write([line(Pong())])
                case Send(id=client, scope="temp"):
                    self._check_following()
                    frames = self._temporary.send(request)
                    if isinstance(frames, bytes):
                        await self._wire.write([frames])
                    else:
                        self._follow(f"temp {request.session}", frames)
                case Send(id=client):
                    self._check_following()
                    sessions = await self._sessions()
                    live = await sessions.send(self._triple, self._user, request)
                    if isinstance(live, bytes):
                        await self._wire.write([live])
                    else:
                        first = live.first
                        self._follow(str(live.session), sessions.follow(live.session, first - 1, first, live))
                case Resume():
                    self._check_following()
                    sessions = await self._sessions()
                    session, after, last, going_on = await sessions.find(self._triple, self._user, request)
                    self._unfollow(str(session))
                    # Copied before the next frame is read: a ping's answer then marks the end of the recorded events.
                    await self._copy(sessions.follow(session, after, last, None))
                    if going_on is not None:
                        self._follow(str(session), sessions.follow(session, last, last, going_on))
                case Cancel():
                    await self._cancel(request)
        except GatewayError as error:
            await self._refuse(error, client)
        except ConnectionError:
            raise
        except Exception:
            log.exception("a frame for %s failed", self._triple.name)
            await self._refuse(INTERNAL, client)

    async def _refuse(self, error: GatewayError, client: str | None) -> None:
        failed = Error(code=code(error), message=error.message, client_id=UNSET if client is None else client)
        await self._wire.write([line(failed)])

    async def _cancel(self, request: Cancel) -> None:
        if self._temporary.cancel(request.id):
            return
        sessions = await self._sessions()
        live = sessions.active(self._triple, self._user, request)
        follows = str(live.session) in self._following
        await sessions.cancel(live)
        if not follows:
            await self._wire.write([live.done])

    def _check_following(self) -> None:
        if len(self._following) >= MAX_FOLLOWING:
            raise Busy(f"a connection follows at most {MAX_FOLLOWING} runs at a time", retry_after=1)

    def _follow(self, key: str, frames: AsyncGenerator[list[bytes], None]) -> None:
        """Follows a session, instead of any earlier following of the same one."""
        self._unfollow(key)
        task = asyncio.create_task(self._copy(frames), name=f"follow {key}")
        self._following[key] = task

        def ended(task: asyncio.Task[None]) -> None:
            if self._following.get(key) is task:
                del self._following[key]

        task.add_done_callback(ended)

    def _unfollow(self, key: str) -> None:
        earlier = self._following.pop(key, None)
        if earlier is not None:
            earlier.cancel()

    async def _copy(self, frames: AsyncGenerator[list[bytes], None]) -> None:
        try:
            try:
                async with aclosing(frames):
                    async for some in frames:
                        await self._wire.write(some)
            except GatewayError as error:
                await self._refuse(error, None)
        except ConnectionError:
            pass  # the client is gone; `serve` notices, too
        except Exception:
            log.exception("following %s failed", self._triple.name)
            self._wire.hang_up()


class RunnerConnection:
    """The runner of an executed object: reads one input, writes the canonical stream and a line with the exit code.

    That line starts with NUL, which JSON never contains, so the runner needs no parser. The runner may cancel.
    """

    def __init__(self, wire: Wire, root: Path, services: Services, ended: Ended) -> None:
        self._wire = wire
        self._root = root
        self._services = services
        self._ended = ended

    async def serve(self) -> None:
        frames = self._wire.frames()
        run = "r1"
        try:
            async with aclosing(frames):
                async for frame in frames:
                    request = parse_exec(frame)
                    run = request.run
                    await self._run(request, frames)
                    return
        except GatewayError as error:
            failed: list[Event] = [Error(run=run, code=code(error), message=error.message)]
            await self._end([*failed, Done(run=run, status="error")], EXIT_CODES.get(code(error), GENERIC))

    async def _run(self, request: Exec, frames: AsyncGenerator[bytes | Literal["too long"], None]) -> None:
        triple = Triple.of(self._root, ObjectName.parse(request.object))
        stop = asyncio.Event()
        fields = fields_of(request.input)
        execution = Execution(self._services.gateway, triple, "exec", request.run)
        cancelled: list[Event] = [Done(run=request.run, status="cancelled")]
        listening = asyncio.create_task(self._listen(frames, stop))
        exit_code = 0
        status: Status = "error"
        try:
            async with aclosing(until(stop, execution.events(fields), lambda: cancelled)) as batches:
                async for batch in batches:
                    for event in batch:
                        if isinstance(event, Error):
                            exit_code = EXIT_CODES.get(event.code, GENERIC)
                        elif isinstance(event, Done):
                            status = event.status
                            exit_code = GENERIC if status == "cancelled" else exit_code
                    if isinstance(batch[-1], Done):
                        await self._end(batch, exit_code)
                    else:
                        await self._wire.write([line(event) for event in batch])
        finally:
            listening.cancel()
            await asyncio.wait({listening})
            self._ended(triple, None, request.run, status)

    async def _listen(self, frames: AsyncGenerator[bytes | Literal["too long"], None], stop: asyncio.Event) -> None:
        """Sets `stop` when the runner is gone or sends a second frame, which can only be a cancel."""
        async for _ in frames:
            break
        else:
            await self._wire.gone()
        stop.set()

    async def _end(self, events: list[Event], exit_code: int) -> None:
        await self._wire.write([*map(line, events), b"\0%d\n" % exit_code])

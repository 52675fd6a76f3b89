"""A server's process, and its messages as the SDK wants them.

The SDK's own transport collects a line for as long as the server writes it, and logs what it can't read. This one has
bounds on lines, messages and bytes, and keeps everything that we don't ask for away from the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.features.agents.tools.mcp import results

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.client._transport import TransportStreams
    from mcp.shared.message import SessionMessage

    from gateway.engines.process import PipeEnd, Process

LONGEST_LINE = 4 * 1024 * 1024
"""Bytes of one message."""
MAX_BYTES, MAX_LINES = 4 * LONGEST_LINE, 20_000
"""The most that a server may write between two of our messages."""
AT_ONCE = 64
"""Lines to read before others get the event loop."""
GRACE_SECONDS = 2.0
"""Time for the server to end by itself after its standard input is closed."""
ENDING_SECONDS = 1.0
"""Time for a process that has closed its standard output to end, so that its exit status is known."""
CLOSED = "it closed its standard output"

HEARD = ("notifications/tools/list_changed", "ping")
"""The notifications and requests that we accept from a server; all others are dropped."""

NAMES = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "XDG_CACHE_HOME"),
    )
)


class _Head(msgspec.Struct):
    id: int | str | None = None
    method: str | None = None


_HEAD = msgspec.json.Decoder(_Head)


def environment(
    given: Mapping[str, str], passed: Sequence[str] = (), environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """What a server's process gets: `given`, the variables named in `passed`, and those that hold no secret."""
    inherited = {
        name: value for name, value in environ.items() if name in NAMES or name in passed or name.startswith("LC_")
    }
    return {**inherited, **given}


class Pipe:
    """Reads what a server writes, within bounds."""

    def __init__(self, ended: Callable[[str], None]) -> None:
        """ended: told why, once, as soon as the server's standard output ends or breaks a bound."""
        self._ended = ended
        self.last_words = ""
        """The last line of its standard error."""
        self.skipped = 0
        """Lines that are no messages: some servers log to their standard output."""
        self.patient = False
        """Whether the server may take its time to end, as one that works may; else it is killed."""
        self._bytes = 0
        self._lines = 0

    def asked(self) -> None:
        """We asked for something: the server may write again. An answer to its pings isn't asking."""
        self._bytes = self._lines = 0

    async def read(self, process: Process, stdout: asyncio.StreamReader, deliver: Callable[[bytes], Any]) -> None:
        """Delivers the messages until the output ends."""
        why = ""
        while not why:
            try:
                line = await stdout.readuntil()
            except asyncio.IncompleteReadError:
                why = CLOSED
            except asyncio.LimitOverrunError:
                why = f"it wrote a line of over {LONGEST_LINE} bytes"
            else:
                why = self._flood(len(line))
                if not why and results.too_many_values(line):
                    why = f"it wrote a message of over {results.MAX_VALUES} values"
                elif not why and self._wanted(line):
                    await deliver(line)
                elif self._lines % AT_ONCE == 0:
                    await asyncio.sleep(0)
        if why == CLOSED:
            await process.wait(ENDING_SECONDS)
        if process.returncode is not None:
            # The guard, as a shell does, says in a line why there is no such process.
            missing = process.returncode == 127 and self.last_words
            why = self.last_words if missing else f"it ended: {_status(process.returncode)}"
        self._ended(why)

    def _flood(self, size: int) -> str:
        self._bytes += size
        self._lines += 1
        if self._bytes > MAX_BYTES:
            return f"it wrote over {MAX_BYTES} bytes that nobody asked for"
        return f"it wrote over {MAX_LINES} lines that nobody asked for" if self._lines > MAX_LINES else ""

    def _wanted(self, line: bytes) -> bool:
        try:
            head = _HEAD.decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            self.skipped += 1
            return False
        return head.method is None or head.method in HEARD

    def wrote(self, line: str) -> None:
        """The server wrote to its standard error."""
        self.last_words = line.strip() or self.last_words


@asynccontextmanager
async def connect(
    command: Sequence[str], env: Mapping[str, str], folder: Path, pipe: Pipe
) -> AsyncIterator[TransportStreams]:
    """Starts the server; ends it, and all that it started, on leaving. Raises OSError if no process can be started."""
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    heard: tuple[
        MemoryObjectSendStream[SessionMessage | Exception], MemoryObjectReceiveStream[SessionMessage | Exception]
    ] = anyio.create_memory_object_stream(0)
    said: tuple[MemoryObjectSendStream[SessionMessage], MemoryObjectReceiveStream[SessionMessage]] = (
        anyio.create_memory_object_stream(0)
    )

    async def deliver(line: bytes) -> None:
        try:
            message = SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError:
            pipe.skipped += 1
            return
        await heard[0].send(message)

    async def read() -> None:
        with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            async with heard[0]:
                await pipe.read(process, reader, deliver)

    async def write() -> None:
        with contextlib.suppress(OSError):
            async for message in said[1]:
                if hasattr(message.message, "method"):
                    pipe.asked()
                writer.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await writer.drain()

    async with _started(command, env, folder, pipe) as (process, writer, reader):
        tasks = [asyncio.create_task(work) for work in (read(), write())]
        try:
            yield heard[1], said[0]
        finally:
            try:
                if pipe.patient:
                    writer.close()
                    await process.wait(GRACE_SECONDS)
            finally:
                for task in tasks:
                    task.cancel()
                for stream in (*heard, *said):
                    stream.close()
                await asyncio.wait(tasks)


@asynccontextmanager
async def _started(
    command: Sequence[str], env: Mapping[str, str], folder: Path, pipe: Pipe
) -> AsyncIterator[tuple[Process, asyncio.StreamWriter, asyncio.StreamReader]]:
    """The server under the guard that engines have, so that it can't outlive the gateway; on leaving it is killed.

    The group is: a server may be a shell's or npx's child.
    """
    from gateway.engines.process import Process

    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as files:
        (stdin, to_stdin), (from_stdout, stdout) = _pipe(files), _pipe(files)
        process = await Process.start(
            command,
            env,
            cwd=folder,
            grace=GRACE_SECONDS,
            wrote=pipe.wrote,
            stdin=stdin.fileno(),
            stdout=stdout.fileno(),
        )
        try:
            stdin.close()
            stdout.close()
            reader = asyncio.StreamReader(LONGEST_LINE)
            reading, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), from_stdout)
            writing, protocol = await loop.connect_write_pipe(
                lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), to_stdin
            )
            files.callback(_close, reading, writing)
            yield process, asyncio.StreamWriter(writing, protocol, None, loop), reader
        finally:
            process.kill()
            await process.stop()


def _close(reading: asyncio.ReadTransport, writing: asyncio.WriteTransport) -> None:
    reading.close()
    if not writing.is_closing():  # it must not be aborted twice
        writing.abort()


def _pipe(files: contextlib.ExitStack) -> tuple[PipeEnd, PipeEnd]:
    from gateway.engines.process import pipe

    read, write = pipe()
    files.callback(read.close)
    files.callback(write.close)
    return read, write


def _status(code: int) -> str:
    return f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"

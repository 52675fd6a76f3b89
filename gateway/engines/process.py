"""A child process that can't outlive the gateway, and the last lines of its output."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import msgspec

GUARD = Path(__file__).with_name("guard.py")
TAIL_LINES = 200
LINE_CHARS = 500
DRAIN_SECONDS = 0.5
"""Time limit for reading output that is still in the pipes when the process has ended."""
REAP_SECONDS = 2.0
"""Time for the guard, beyond the engine's grace, to report that the engine is gone."""


class Process:
    """An engine process under its guard, made by `start`.

    pid: the engine's own; None until the guard reports it. returncode: as in `subprocess`; None while the engine runs.
    tail: the last lines of standard output and standard error together.

    The guard holds the other end of a socket: it reports how the engine fares, and ends it once our end closes. asyncio
    would kill its subprocesses when the loop ends, but the guard must survive that: so it is a plain Popen.
    """

    def __init__(
        self,
        guard: subprocess.Popen[bytes],
        grace: float,
        hide: Callable[[str], str] = str,
        wrote: Callable[[str], None] | None = None,
        began: Callable[[int], None] | None = None,
    ) -> None:
        self.pid: int | None = None
        self.returncode: int | None = None
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._guard = guard
        self._grace = grace
        self._hide = hide
        self._wrote = wrote
        self._began = began
        self._announced: dict[str, Any] = {}
        self._news = asyncio.Event()
        self._lifeline: asyncio.Transport
        self._watch: asyncio.Task[None]

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        cwd: Path | None = None,
        grace: float = 5.0,
        hide: Callable[[str], str] = str,
        wrote: Callable[[str], None] | None = None,
        began: Callable[[int], None] | None = None,
        stdin: int = -1,
        stdout: int | None = None,
        rules: str = "",
    ) -> Self:
        """Starts `argv` with `env` as its whole environment.

        cwd: its working folder; None: the root. grace: seconds between SIGTERM and SIGKILL in `stop`. hide: applied to
        each line of output. wrote: called with each line. began: called with the pid. stdin, stdout: descriptors for
        it to read and write; by default it reads nothing, and its standard output is read here. rules: what it may do
        with files; see `guard.py`. Raises OSError if the system can't start a process.
        """
        # Half a start can't be undone, and a whole one takes milliseconds: wait for it.
        starting = asyncio.ensure_future(cls._start(argv, env, cwd, grace, hide, wrote, began, stdin, stdout, rules))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait({starting})
            if starting.exception() is None:
                await starting.result().stop()
            raise

    @classmethod
    async def _start(
        cls,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path | None,
        grace: float,
        hide: Callable[[str], str],
        wrote: Callable[[str], None] | None,
        began: Callable[[int], None] | None,
        stdin: int,
        stdout: int | None,
        rules: str,
    ) -> Self:
        loop = asyncio.get_running_loop()
        with ExitStack() as ours_on_failure, ExitStack() as given:
            ours, theirs = socket.socketpair()
            ours_on_failure.callback(ours.close)
            given.callback(theirs.close)
            read = [_pipe(ours_on_failure, given) for _ in range(2 if stdout is None else 1)]
            # A millisecond or two. In a thread, a cancelled start would close the descriptors under it.
            guard = subprocess.Popen(  # noqa: ASYNC220, S603
                [sys.executable, "-I", "-S", str(GUARD), str(grace), str(stdin), rules, *argv],
                stdin=theirs.fileno(),
                stdout=read[1][1].fileno() if stdout is None else stdout,
                stderr=read[0][1].fileno(),
                pass_fds=[stdin] if stdin >= 0 else (),
                env=env,
                cwd=cwd or "/",
                # Ctrl-C in the terminal reaches the gateway alone, which stops its engines in order.
                start_new_session=True,
            )
            ours_on_failure.pop_all()
        process = cls(guard, grace, hide, wrote, began)
        ours.setblocking(False)
        report = _Lines(process._report)
        process._lifeline, _ = await loop.create_connection(lambda: report, sock=ours)
        output = [_Lines(process._line) for _ in read]
        for lines, (end, _) in zip(output, read, strict=True):
            await loop.connect_read_pipe(lambda lines=lines: lines, end)  # type: ignore[misc]
        process._watch = asyncio.create_task(process._run(report, output), name=f"engine process {guard.pid}")
        return process

    async def announced(self, key: str) -> Any:
        """Waits for a value that the process prints as a line `{"ctxgate": {key: value}}` on standard output.

        Raises EOFError if the process ends before.
        """
        while key not in self._announced:
            if self._watch.done():
                raise EOFError(key)
            self._news.clear()
            await self._news.wait()
        return self._announced[key]

    async def wait(self, timeout: float | None = None) -> bool:
        """True if the process ends within `timeout` seconds. None: waits until it has ended."""
        await asyncio.wait({self._watch}, timeout=timeout)
        return self._watch.done()

    async def stop(self) -> None:
        """Ends the process group: SIGTERM, then SIGKILL after the grace. Returns once it is gone. Idempotent."""
        if self._watch.done():
            return
        # Half-closed, so that the guard can still report how the engine ended.
        self._lifeline.write_eof()
        if not await self.wait(self._grace + REAP_SECONDS):
            # The guard itself hangs, stopped by a debugger for one: do its work.
            if self.pid is not None:
                _kill_group(self.pid)
            _kill_group(self._guard.pid)
            await self.wait()

    def on_end(self, ended: Callable[[], None]) -> None:
        """Calls `ended` once the process has ended."""
        self._watch.add_done_callback(lambda _: ended())

    def kill(self) -> None:
        """Sends SIGKILL to the process group; `wait` returns when it has ended."""
        if self.returncode is None and self.pid is not None and not self._watch.done():
            _kill_group(self.pid)

    def ending(self) -> str:
        """How the process ended, in words: "exited with code 1", "was killed by SIGSEGV"."""
        code = self.returncode
        if code is None:
            return "is running"
        if code >= 0:
            return f"exited with code {code}"
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"

    @property
    def illegal_instruction(self) -> bool:
        """Whether SIGILL killed the process: it was built for another processor."""
        return self.returncode == -signal.SIGILL

    async def _run(self, report: _Lines, output: list[_Lines]) -> None:
        """Ends with the process, once all its output is read."""
        try:
            await report.closed
            if self.returncode is None and self.pid is not None:
                # The guard was killed, so it can't end the engine any more.
                _kill_group(self.pid)
            # A grandchild that left the process group may hold the pipes open; its output doesn't matter.
            await asyncio.wait({lines.closed for lines in output}, timeout=DRAIN_SECONDS)
            code = await asyncio.to_thread(self._guard.wait)
            if self.returncode is None:
                self.returncode = code
        finally:
            for lines in (report, *output):
                lines.close()
            self._news.set()

    def _report(self, line: bytes) -> None:
        """A line from the guard: `pid N`, then `exit CODE`."""
        word, _, number = line.partition(b" ")
        if word == b"pid":
            self.pid = int(number)
            if self._began is not None:
                self._began(self.pid)
        elif word == b"exit":
            self.returncode = int(number)

    def _line(self, line: bytes) -> None:
        if line.startswith(b'{"ctxgate"'):
            try:
                self._announced.update(msgspec.json.decode(line)["ctxgate"])
            except (TypeError, ValueError, RecursionError):  # msgspec.DecodeError is a ValueError
                self._keep(line)
            else:
                self._news.set()
        else:
            self._keep(line)

    def _keep(self, line: bytes) -> None:
        text = line[: 4 * LINE_CHARS].decode("utf-8", "replace").rstrip()[:LINE_CHARS]
        if text:
            text = self._hide(text)
            self.tail.append(text)
            if self._wrote is not None:
                self._wrote(text)


class _Lines(asyncio.Protocol):
    """Cuts incoming data into lines; the last one needs no line break."""

    def __init__(self, line: Callable[[bytes], None]) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line = line
        self._rest = b""
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line)
        if len(rest) > 4 * LINE_CHARS:
            self._line(rest)
            rest = b""
        self._rest = rest

    def connection_lost(self, exc: Exception | None) -> None:
        if self._rest:
            self._line(self._rest)
            self._rest = b""
        if not self.closed.done():
            self.closed.set_result(None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class PipeEnd:
    """One end of a pipe, for a loop's transport, which closes it.

    uvloop closes the descriptor itself before it calls `close`. By then its number may be that of a file or connection
    of another thread, which a file object would close, since it knows only the number.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pipe = os.fstat(descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        """Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        with suppress(OSError):  # closed already
            if os.path.samestat(os.fstat(descriptor), self._pipe):
                os.close(descriptor)


def pipe() -> tuple[PipeEnd, PipeEnd]:
    """An end to read from, and one to write to."""
    read, write = os.pipe()
    return PipeEnd(read), PipeEnd(write)


def _pipe(ours: ExitStack, given: ExitStack) -> tuple[PipeEnd, PipeEnd]:
    """An end to read from, which stays ours, and one to write to, which the child gets."""
    read, write = pipe()
    ours.callback(read.close)
    given.callback(write.close)
    return read, write


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)

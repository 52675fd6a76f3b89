"""A child process that can't outlive the gateway, and the last lines that it wrote."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

GUARD = Path(__file__).with_name("guard.py")
TAIL_LINES = 200
LINE_CHARS = 500
REAP_SECONDS = 2.0
"""What the guard may take, beyond the engine's grace, to say that the engine is gone."""


class Process:
    """An engine process under its guard. Make one with `start`.

    pid: the engine's own, None until the guard has announced it. returncode: as `subprocess` tells it, None
    while the engine runs. tail: the last lines of its output, standard error and output together.
    """

    def __init__(self, child: asyncio.subprocess.Process, grace: float) -> None:
        self._child = child
        self._grace = grace
        self._announced: dict[str, Any] = {}
        self._news = asyncio.Event()
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._watch = asyncio.create_task(self._run(), name=f"engine output {child.pid}")

    @classmethod
    async def start(cls, argv: Sequence[str], env: Mapping[str, str], *, grace: float = 5.0) -> Self:
        """Starts `argv` with `env` on top of the gateway's environment.

        grace: seconds between SIGTERM and SIGKILL when it is stopped.
        """
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(GUARD), str(grace), *argv),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **env},
            # A Ctrl-C in the terminal is the gateway's to handle: it stops its engines in order.
            start_new_session=True,
        )
        return cls(child, grace)

    @property
    def pid(self) -> int | None:
        return self._announced.get("pid")

    @property
    def returncode(self) -> int | None:
        if not self._watch.done():
            return None
        code = self._child.returncode
        assert code is not None
        return code if code <= 128 else 128 - code

    async def announced(self, key: str) -> Any:
        """A value that the process tells on its standard output, in a line `{"ctxgate": {key: value}}`.

        Raises EOFError if it ends before it has told.
        """
        while key not in self._announced:
            if self._watch.done():
                raise EOFError(key)
            self._news.clear()
            await self._news.wait()
        return self._announced[key]

    async def wait(self, timeout: float | None = None) -> bool:
        """Whether the process ended within `timeout` seconds; None: waits until it has."""
        await asyncio.wait({self._watch}, timeout=timeout)
        return self._watch.done()

    async def stop(self) -> None:
        """Ends the process group: SIGTERM, then SIGKILL after the grace. Returns once it is gone. Idempotent."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        if not await self.wait(self._grace + REAP_SECONDS):
            # The guard itself hangs, e.g. stopped by a debugger: do its work.
            if self.pid is not None:
                _kill_group(self.pid)
            _kill_group(self._child.pid)
            await self.wait()

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

    async def _run(self) -> None:
        """Reads all output, then takes the exit code."""
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        pumps = [asyncio.create_task(self._pump(stream)) for stream in (self._child.stdout, self._child.stderr)]
        try:
            if await self._child.wait() < 0 and self.pid is not None:
                # The guard itself was killed, and can't end the engine any more.
                _kill_group(self.pid)
            # A grandchild that left the process group may hold the pipes open: what it writes is not ours.
            await asyncio.wait(pumps, timeout=0.5)
        finally:
            for pump in pumps:
                pump.cancel()
            self._news.set()

    async def _pump(self, stream: asyncio.StreamReader) -> None:
        rest = b""
        while data := await stream.read(64 * 1024):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._line(line)
            if len(rest) > 4 * LINE_CHARS:
                self._line(rest)
                rest = b""
        if rest:
            self._line(rest)

    def _line(self, line: bytes) -> None:
        if line.startswith(b'{"ctxgate"'):
            try:
                self._announced.update(msgspec.json.decode(line)["ctxgate"])
            except (msgspec.DecodeError, TypeError, ValueError):
                self._keep(line)
            else:
                self._news.set()
        else:
            self._keep(line)

    def _keep(self, line: bytes) -> None:
        text = line[: 4 * LINE_CHARS].decode("utf-8", "replace").rstrip()[:LINE_CHARS]
        if text:
            self.tail.append(text)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return

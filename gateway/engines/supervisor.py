"""Supervises a running engine process: kills it if it is stuck, unloads it if it is idle, measures its memory."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Hashable
from typing import Protocol

from gateway.backends import Backend
from gateway.config import Model
from gateway.engines import memory
from gateway.engines.process import Process
from gateway.engines.watchdog import Signs, Watchdog
from gateway.errors import GatewayError

log = logging.getLogger("ctxgate")

TICK_SECONDS = 1.0
"""Time between two checks of a ready engine: its progress, idleness and memory."""
PROGRESS_SECONDS = 5.0
"""After this much silence in all answers the engine is asked for its progress, and has as long to reply."""
PAUSED_TICKS = 3
"""If one tick takes as long as this many, the gateway itself wasn't running."""
MEASURE_TICKS, MEASURE_GPU_TICKS = 5, 60


class EngineForSupervisor(Protocol):
    """An engine as its supervisor sees it; `gateway.engines.engine.Engine` is one."""

    model: Model
    keep_alive: float | None

    @property
    def in_flight(self) -> int: ...
    @property
    def idle_since(self) -> float: ...

    @property
    def current_backend(self) -> Backend | None:
        """The backend of the running process, also while it drains."""
        ...

    def drain(self) -> None: ...

    async def measure(self, *, with_gpu: bool = True) -> None: ...


def unloads_in(engine: EngineForSupervisor) -> float | None:
    """Seconds until the engine has been idle for so long that it ends; None: it stays."""
    residence = engine.model.residence
    ttl = residence.idle_ttl_seconds if engine.keep_alive is None else engine.keep_alive
    if ttl is None or ttl == math.inf or residence.pinned:
        return None
    return ttl if engine.in_flight else engine.idle_since + ttl - time.monotonic()


class Supervisor:
    """Supervises one process for as long as it runs.

    stuck: why the supervisor killed the process; None if it didn't.
    """

    def __init__(self, engine: EngineForSupervisor, process: Process) -> None:
        self.stuck: str | None = None
        self._engine = engine
        self._process = process
        self._watchdog = Watchdog(*self._patience())

    async def run(self) -> None:
        """Returns once the process has ended."""
        ticks = 0
        failed_before = False
        while True:
            try:
                await self._check(ticks)
            except Exception:
                # A backend can be the user's own. If its bug ended the supervisor, the engine's end would go unnoticed.
                if not failed_before:
                    log.exception("model %s: checking its engine failed", self._engine.model.name)
                failed_before = True
            if await self._ended():
                return
            ticks += 1

    async def _check(self, ticks: int) -> None:
        engine = self._engine
        if ticks % MEASURE_TICKS == 0:
            await engine.measure(with_gpu=ticks % MEASURE_GPU_TICKS == 0)
        if engine.in_flight:
            if (why := await self._find_stuck()) is not None:
                self.stuck = why
                self._process.kill()
            return
        self._watchdog.rest()
        left = unloads_in(engine)
        if left is not None and left <= 0:
            engine.drain()

    async def _ended(self) -> bool:
        """Waits for one tick; True if the process has ended."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        ended = await self._process.wait(TICK_SECONDS)
        if loop.time() - began > PAUSED_TICKS * TICK_SECONDS:
            # The machine or the container was paused, and perhaps the engine with it.
            self._watchdog.rest()
        return ended

    def _patience(self) -> tuple[float, float]:
        """Limits that end a stuck engine before its backend gives up on each answer."""
        model = self._engine.model
        return model.residence.stall_timeout_seconds, max(1.0, model.request_timeout - 2 * TICK_SECONDS)

    async def _find_stuck(self) -> str | None:
        """Why the engine counts as stuck; None if it works, or nobody can say."""
        now = asyncio.get_running_loop().time
        watchdog, pid = self._watchdog, self._process.pid
        backend = self._engine.current_backend
        last = backend.heard() if backend is not None else None
        if backend is None or last is None or pid is None:
            watchdog.rest()
            return None
        watchdog.limits(*self._patience())
        soon = min(PROGRESS_SECONDS, watchdog.stall / 4)
        if watchdog.silent(now()) < soon:
            return watchdog.stuck(now(), Signs(last))
        progress = await self._progress(backend, soon)
        usage = await asyncio.to_thread(memory.usage, pid)
        return watchdog.stuck(now(), Signs(last, progress, usage.cpu if usage is not None else None))

    async def _progress(self, backend: Backend, seconds: float) -> Hashable | None:
        """What the engine itself reports; None if it reports nothing in time."""
        try:
            async with asyncio.timeout(seconds):
                return await backend.progress()
        except (GatewayError, TimeoutError):
            return None

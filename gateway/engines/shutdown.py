"""The end of one engine: once its answers have ended, or at once."""

from __future__ import annotations

import asyncio
from typing import Protocol

from gateway.backends import Backend
from gateway.config import Model
from gateway.engines.launcher import Launcher
from gateway.engines.lifecycle import Lifecycle
from gateway.engines.requests import EngineRequests
from gateway.engines.residency import Residency
from gateway.engines.startup import Startup
from gateway.engines.states import Event
from gateway.errors import ProviderUnavailable


class EngineForShutdown(Protocol):
    """An engine as its end sees it; `gateway.engines.engine.Engine` is one."""

    model: Model
    residency: Residency
    launcher: Launcher
    lifecycle: Lifecycle
    requests: EngineRequests
    startup: Startup
    watching: asyncio.Task[None] | None

    @property
    def current_backend(self) -> Backend | None: ...
    async def measure(self, *, with_gpu: bool = True) -> None: ...
    def forgive(self) -> None: ...
    async def gone(self, event: Event) -> None: ...


class Shutdown:
    """recallable: whether `recall` may undo the drain in progress."""

    recallable = False
    _stopping: asyncio.Task[None] | None = None
    _timer: asyncio.TimerHandle | None = None

    def __init__(self, engine: EngineForShutdown) -> None:
        self._engine = engine
        self._lifecycle = engine.lifecycle

    def drain(self, *, recallable: bool = False) -> None:
        """Takes no further requests and ends once the answers in flight have ended.

        recallable: `recall` may undo it. If the engine drains already, a call without it makes that final; in any other
        state, this does nothing.
        """
        engine, requests = self._engine, self._engine.requests
        if self._lifecycle.state != "ready":
            if self.recallable and not recallable:
                self.recallable = False
                requests.give_way(False)
            return
        requests.require_join()
        self.recallable = recallable
        self._lifecycle.to("drain")
        if requests.queue:
            engine.startup.begin()  # flex requests waited for a place
        if not requests.places.in_flight:
            self.end()
            return
        requests.give_way(recallable)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(engine.residency.limits.drain_timeout_seconds, self.end)

    def recall(self) -> bool:
        """Undoes a recallable drain. False if there is none."""
        if self._lifecycle.state != "draining" or not self.recallable:
            return False
        self.cancel_timer()
        self._engine.requests.give_way(False)
        self._lifecycle.to("recall")
        return True

    async def retire(self) -> None:
        """Ends the engine for good once its answers in flight have ended. Returns when it is gone.

        Stops a starting engine at once: requests that wait for it get ProviderUnavailable.
        """
        self._engine.startup.close()
        if self._lifecycle.state in ("starting", "failed"):
            await self.stop()
            return
        self.drain()
        while self._lifecycle.state not in ("stopped", "failed"):
            await self._lifecycle.changed()

    async def unload(self) -> None:
        """Ends the engine, even a pinned one, once its answers in flight have ended. Returns when it is gone.

        Requests that come meanwhile start it again. A starting engine ends once it has answered the waiting requests.
        """
        while self._lifecycle.state == "starting":
            await self._lifecycle.changed()
        self.drain()
        while self._lifecycle.state in ("draining", "stopping"):
            await self._lifecycle.changed()

    async def stop(self) -> None:
        """Ends the engine if we started it, even during its start. Returns once it is gone. Idempotent."""
        engine = self._engine
        why = f"model {engine.model.name!r}: its engine was stopped while it started"
        engine.requests.queue.turn_away(ProviderUnavailable(why))
        engine.startup.give_up_waiting()
        self.end()
        if self._stopping is not None:
            await asyncio.shield(self._stopping)

    def end(self) -> None:
        """Ends the process now, whatever it does."""
        engine, state = self._engine, self._lifecycle.state
        if self._stopping is not None or state == "stopped":
            return
        if state == "failed":
            engine.forgive()
            return
        starting = engine.startup.task if state == "starting" else None
        self.cancel_timer()
        engine.requests.require_join()
        self._lifecycle.to("stop")
        self._stopping = asyncio.create_task(self._stop_process(starting), name=f"stop {engine.model.name}")

    def cancel_timer(self) -> None:
        """The drain has no deadline any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _stop_process(self, starting: asyncio.Task[None] | None) -> None:
        engine = self._engine
        try:
            if starting is not None:
                starting.cancel()
                await asyncio.wait({starting})
            if engine.watching is not None:
                engine.watching.cancel()
            if (process := engine.launcher.process) is not None:
                try:
                    await asyncio.gather(engine.measure(with_gpu=False), self._save_prompts())
                finally:
                    await process.stop()
        finally:
            self._stopping = None
            await engine.gone("gone")

    async def _save_prompts(self) -> None:
        if (backend := self._engine.current_backend) is not None:
            await backend.save_prompts()

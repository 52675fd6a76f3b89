"""The start of one engine: the only way to the state `ready`."""

from __future__ import annotations

import asyncio
from typing import Protocol

from gateway.backends import Address, Backend
from gateway.engines.failures import Failures
from gateway.engines.launcher import Launcher
from gateway.engines.lifecycle import Lifecycle
from gateway.engines.memory import Footprint
from gateway.engines.residency import EngineForResidency
from gateway.errors import GatewayError, ProviderUnavailable
from gateway.line import Line
from gateway.wire.progress import Waiting


class EngineForStartup(EngineForResidency, Protocol):
    """An engine as its start sees it; `gateway.engines.engine.Engine` is one."""

    failures: Failures
    launcher: Launcher
    lifecycle: Lifecycle
    failure: GatewayError | None

    @property
    def accepting(self) -> Backend | None: ...
    async def settle_doubt(self) -> None: ...
    def came(self, address: Address) -> None: ...
    async def broke(self, error: GatewayError) -> None: ...


class Startup:
    """phase: what the start in progress waits for. task: the last start; None before the first one. closed: it never
    starts again."""

    phase: Waiting | None = None
    task: asyncio.Task[None] | None = None
    closed = False
    _restarts = False
    """It restarts although nobody waits, because it died in use."""

    def __init__(self, engine: EngineForStartup, queue: Line[Backend]) -> None:
        """queue: the requests that wait for the engine."""
        self._engine = engine
        self._queue = queue

    def begin(self) -> None:
        """Does nothing if it starts already, and once it is closed."""
        if not self.closed and (self.task is None or self.task.done()):
            self.phase = "memory"
            self.task = asyncio.create_task(self._bring_up(), name=f"start {self._engine.model.name}")

    def again(self) -> None:
        """Starts it although nobody waits, so that the next request finds it ready."""
        self._restarts = True
        self.begin()

    def close(self) -> None:
        """Once no route leads to the engine: nobody would end another process of it."""
        self.closed = True

    def give_up_unwanted(self) -> None:
        """Cancels a start that has begun no process yet, if no request waits for it any more."""
        if not self._queue and not self._restarts and self._engine.state != "ready":
            self.give_up_waiting()

    def give_up_waiting(self) -> None:
        """Cancels a start that has begun no process yet."""
        if self.task is not None and self._engine.state != "starting":
            self.task.cancel()

    async def _bring_up(self) -> None:
        """A failure goes to all requests in the queue."""
        engine = self._engine
        since = self._queue.since
        try:
            if await self._old_process_gone():
                self.phase = "back-off"
                await engine.failures.wait(engine.failure)
                self.phase = "memory"
                engine.came(await self._address_of_server(since))
        except GatewayError as error:
            await engine.broke(error)
        except asyncio.CancelledError:
            # `Shutdown` ends the process itself; otherwise the start only waited, and nobody waited for it.
            raise
        except BaseException:
            name = engine.model.name
            await engine.broke(ProviderUnavailable(f"model {name!r}: its start failed; see the gateway's log"))
            raise
        finally:
            self._restarts = False
            if self._queue:
                # These requests came while the start was given up.
                asyncio.get_running_loop().call_soon(self._begin_again)

    def _begin_again(self) -> None:
        if self._queue and self._engine.accepting is None:
            self.begin()

    async def _old_process_gone(self) -> bool:
        """Waits until the engine can start; False if it was recalled instead and serves."""
        engine = self._engine
        while engine.state in ("draining", "stopping", "ready"):
            if engine.accepting is not None:
                return False
            await (engine.settle_doubt() if engine.state == "ready" else engine.lifecycle.changed())
        return True

    async def _address_of_server(self, since: float) -> Address:
        """Where a server answers: the user's own at the fixed address, else one that is started once memory is free."""
        engine = self._engine
        if (address := await engine.launcher.adopt(engine.model)) is not None:
            engine.admitted(Footprint())
            return address
        return await engine.launcher.launch(engine, since)

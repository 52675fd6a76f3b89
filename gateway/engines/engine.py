"""One engine: its process, its state and the requests that wait for it.

Each part can be read alone: `requests` has the requests that wait and are answered, `startup` and `launcher` start a
process, `supervisor` watches it, `shutdown` ends it, `lifecycle` and `states` hold the state. `Residency` gives an
engine its memory, and `admission` decides which engine gets it next. `Engine` ties them together, and says what a
change of the state means.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from gateway.backends import Address, Backend
from gateway.config import Model
from gateway.engines.failures import Failures
from gateway.engines.launch import last_words
from gateway.engines.launcher import Launcher, ending
from gateway.engines.lifecycle import Lifecycle
from gateway.engines.machine import this_machine
from gateway.engines.memory import Footprint
from gateway.engines.process import Process
from gateway.engines.recipe import Machine
from gateway.engines.requests import EngineRequests
from gateway.engines.residency import Residency
from gateway.engines.shutdown import Shutdown
from gateway.engines.snapshot import EngineSnapshot, progress_of, snapshot_of
from gateway.engines.startup import Startup
from gateway.engines.states import Event, State
from gateway.engines.supervisor import Supervisor, unloads_in
from gateway.engines.usage import UsageSampler
from gateway.errors import GatewayError, ProviderUnavailable, WeightsMissing
from gateway.wire.progress import Progress, Waiting

log = logging.getLogger("ctxgate")

DEATH_SECONDS = 1.0
"""The most time between the closing of an engine's socket and the end of its process."""


class Engine:
    """The engine of one model, started by the first request that joins `requests`.

    fixed: the address that config.yaml names. A healthy server that already listens there is used as it is, and `stop`
    leaves it alone. None: the system chooses a port at each start. residency: shared by all engines of the gateway;
    None: one of its own. grace: seconds between SIGTERM and SIGKILL.
    """

    failure: GatewayError | None = None
    """Why the state is failed."""
    keep_alive: float | None = None
    """Seconds without a request until it ends, as last set by a client; None: as configured."""
    gpu_seen: int | None = None
    """Bytes of GPU memory that its process holds, as the driver said within the last minute."""
    load_seconds: float | None = None
    pauses = False
    """See `gateway.engines.admission.Resident`."""
    crashes = 0
    running_at: Address | None = None
    """Where its process, or the user's own server, answers."""
    watching: asyncio.Task[None] | None = None
    """Ends with the running process."""
    _backend: Backend | None = None
    """Of the running process, whatever its state."""
    _doubted = False
    """A request couldn't reach the address."""

    def __init__(
        self,
        model: Model,
        fixed: Address | None = None,
        *,
        residency: Residency | None = None,
        machine: Callable[[], Machine] = this_machine,
        grace: float = 5.0,
    ) -> None:
        self.model = model
        self.residency = residency if residency is not None else Residency()
        self.held = Footprint()
        """Its share of the budget while it is in memory."""
        self.launcher = Launcher(self.residency, fixed, machine, grace)
        self.failures = Failures()
        self.usage = UsageSampler()
        self.lifecycle = Lifecycle()
        self.requests = EngineRequests(self)
        self.startup = Startup(self, self.requests.queue)
        self.shutdown = Shutdown(self)

    # What others see

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def state(self) -> State:
        return self.lifecycle.state

    @property
    def entered(self) -> float:
        """When the state began, by time.monotonic."""
        return self.lifecycle.entered

    @property
    def address(self) -> Address | None:
        """Where the engine answers; None unless it takes requests."""
        return self.running_at if self.accepting is not None else None

    @property
    def accepting(self) -> Backend | None:
        """The backend of an engine that takes requests; None if it doesn't."""
        return self._backend if self.state == "ready" and not self._doubted else None

    @property
    def current_backend(self) -> Backend | None:
        """The backend of the running engine, also while it drains; None if it doesn't run."""
        return self._backend

    @property
    def pid(self) -> int | None:
        """Process id of the engine; None if it doesn't run or isn't ours."""
        return self.launcher.pid

    @property
    def in_flight(self) -> int:
        """Requests that have come in and not gone out."""
        return self.requests.places.in_flight

    @property
    def idle_since(self) -> float:
        return self.requests.places.idle_since

    @property
    def rank(self) -> int:
        """See `Places.rank`."""
        return self.requests.places.rank

    @property
    def urgency(self) -> tuple[int, float] | None:
        """See `Line.urgency`."""
        return self.requests.queue.urgency

    @property
    def waits_for(self) -> Waiting | None:
        """What requests in the queue wait for."""
        if self.state == "starting":
            return "load"
        if self.state in ("draining", "stopping"):
            return "drain"
        if self.state == "ready":
            return "place" if self.requests.queue else None
        return self.startup.phase

    def progress(self, key: object) -> Progress | None:
        """The progress of the request that joined with `key`; None once it no longer waits."""
        return progress_of(self, key)

    def status(self) -> EngineSnapshot:
        return snapshot_of(self)

    def on_change(self, watcher: Callable[[Engine], None]) -> None:
        """Calls `watcher` after each change of the state. It must not wait or raise."""
        self.lifecycle.on_change(lambda: watcher(self))

    def unloads_in(self) -> float | None:
        """Seconds until it ends because it is idle; None: it stays."""
        return unloads_in(self)

    async def missing(self) -> WeightsMissing | None:
        """Why no request can be answered; None if it runs. See `Launcher.missing`."""
        return await self.launcher.missing(self.model) if self._backend is None else None

    async def measure(self, *, with_gpu: bool = True) -> None:
        """Measures the memory of the running engine; see `Residency.measure`."""
        pid = self.pid
        if pid is not None and self.state != "starting":
            speed = self.launcher.seconds_per_token
            await self.residency.measure(self, pid, with_gpu=with_gpu, seconds_per_token=speed)

    def reconfigure(self, model: Model) -> Backend | None:
        """Applies settings that don't need a new process.

        Returns the previous backend; the caller closes it when its answers have ended.
        """
        self.model = model
        if self._backend is None:
            return None
        assert self.running_at is not None
        before, self._backend = self._backend, self.launcher.backend(model, self.running_at)
        self.requests.refresh_backend()
        return before

    # Whether it can be reached

    def lost(self) -> None:
        """Notes that a request couldn't reach `address`: the next one that joins checks the engine before it uses it
        again."""
        if self.state == "ready":
            self._doubted = True
            self.requests.require_join()
            if self.requests.queue:
                self.startup.begin()

    async def settle_doubt(self) -> None:
        """Finds out whether a ready engine that a request did not reach still lives."""
        process = self.launcher.process
        if process is None:
            await self._forget()
        elif process.returncode is not None or await process.wait(DEATH_SECONDS):
            if self.watching is not None:
                await asyncio.wait({self.watching})
        elif self.launcher.process is process and self.state == "ready" and self._doubted:
            self._doubted = False
            self.requests.serve()

    async def _forget(self) -> None:
        """Handles the end of a server that we didn't start: there is nothing to stop."""
        if self.state == "ready":
            self.lifecycle.to("drain")
            self.lifecycle.to("stop")
            await self.gone("gone")

    # What changes its state

    def admitted(self, footprint: Footprint) -> None:
        """It starts: `residency` has granted the memory, or the user's own server needs none."""
        self.held = footprint
        self.failure = None
        self.lifecycle.to("admit")

    def came(self, address: Address) -> None:
        """The server answers."""
        self.running_at = address
        self._backend = self.launcher.backend(self.model, address)
        self.load_seconds = time.monotonic() - self.entered
        self.requests.places.rest()
        self.lifecycle.to("came")
        if (process := self.launcher.process) is not None:
            self.watching = asyncio.create_task(self._watch(process), name=f"watch {self.name}")
        self.requests.serve()
        if self.residency.short:
            self.residency.schedule()

    async def broke(self, error: GatewayError) -> None:
        """The start failed."""
        if self.state not in ("starting", "stopped", "failed"):
            return
        if self.state == "starting":
            self.failures.add()
            if self.launcher.process is not None:
                # It runs if it answers but its backend can't be made.
                await self.launcher.process.stop()
        self.failure = error
        await self.gone("broke")
        self.requests.queue.turn_away(error)

    def emptied(self) -> None:
        """The last request has gone out."""
        if self.state == "draining":
            self.shutdown.end()
        elif self.residency.short:
            self.residency.schedule()

    def drain(self, *, recallable: bool = False) -> None:
        """See `Shutdown.drain`."""
        self.shutdown.drain(recallable=recallable)

    def recall(self) -> None:
        """Ends a recallable drain because its memory isn't needed after all: the engine serves again."""
        if self.shutdown.recall() and not self._doubted:
            self.requests.serve()

    async def stop(self) -> None:
        """See `Shutdown.stop`."""
        await self.shutdown.stop()

    async def _watch(self, process: Process) -> None:
        supervisor = Supervisor(self, process)
        await supervisor.run()
        if self.state in ("ready", "draining"):
            await self._crashed(process, supervisor.stuck)

    async def _crashed(self, process: Process, stuck: str | None) -> None:
        """The process ended by itself, or was killed because it was stuck."""
        self.crashes += 1
        if self.requests.has_answered:
            self.failures.forget()
        self.failures.add()
        assert self.launcher.recipe is not None
        what = f"{stuck}, and was ended" if stuck is not None else ending(process, self.launcher.recipe)
        self.failure = ProviderUnavailable(f"model {self.name!r}: its engine {what}{last_words(process)}", status=502)
        in_use = self.in_flight > 0
        await self.gone("broke")
        if in_use and not self.residency.claims:
            self.startup.again()
        elif self.requests.queue:
            self.startup.begin()

    async def gone(self, event: Event) -> None:
        """No process of ours runs any more. event: what this means for the state."""
        backend, self._backend = self._backend, None
        self.running_at = self.watching = None
        self._doubted = False
        self.requests.gone()
        self.launcher.gone()
        self.shutdown.cancel_timer()
        self.held = Footprint()
        self.gpu_seen = None
        if not self.requests.queue:
            self.keep_alive = None
        self.residency.freed(self)
        self.lifecycle.to(event)
        self.residency.schedule()
        if backend is not None:
            await backend.aclose()

    def forgive(self) -> None:
        """It may start as if it had never failed."""
        self.failure = None
        self.lifecycle.to("stop")


def for_model(model: Model, residency: Residency | None = None) -> Engine | None:
    """The engine that the gateway starts for a model; None if the model's server is external."""
    if not model.startable:
        return None
    fixed = None
    if model.port is not None:
        fixed = Address.parse(model.base_url) if model.base_url is not None else Address(port=model.port)
    elif model.base_url is not None or model.uds is not None:
        # Without a port on this machine, the address is that of an external server.
        return None
    return Engine(model, fixed, residency=residency)

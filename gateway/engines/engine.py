"""One engine: its process, its state and the requests that wait for it.

Each part can be read alone: `lifecycle` and `states` hold the state, `request_queue` the requests that wait, `places`
those that are answered, `launcher` the start of a process, `failures` the pauses between starts that fail, `supervisor`
the running process. `Residency` gives it its memory, and `admission` decides which engine gets it next. `Engine` ties
them together. A request comes in through `enter` if it may go to the engine at once (`Engine.backend`), else through
`join`, which starts the engine if need be; it goes out through `leave`. All of it runs in the event loop and decides
without waiting, so callers can't race.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from gateway.backends import Address, Backend
from gateway.backends.base import Flexible
from gateway.config import Model
from gateway.engines.failures import Failures
from gateway.engines.launch import last_words
from gateway.engines.launcher import Launcher, ending
from gateway.engines.lifecycle import Lifecycle
from gateway.engines.machine import this_machine
from gateway.engines.memory import Footprint
from gateway.engines.places import Places
from gateway.engines.process import Process
from gateway.engines.recipe import Machine, slots
from gateway.engines.request_queue import RequestQueue, Ticket
from gateway.engines.residency import Residency
from gateway.engines.seat import EngineSeat
from gateway.engines.snapshot import EngineSnapshot, progress_of, snapshot_of
from gateway.engines.states import Event, State
from gateway.engines.supervisor import Supervisor, unloads_in
from gateway.engines.usage import UsageSampler
from gateway.errors import GatewayError, ProviderModelNotLoaded, ProviderUnavailable, WeightsMissing
from gateway.wire.chat import DEFAULT, FLEX
from gateway.wire.progress import Progress, Waiting

log = logging.getLogger("ctxgate")

DEATH_SECONDS = 1.0
"""The most time between the closing of an engine's socket and the end of its process."""


class Engine:
    """The engine of one model, started by the first `join`.

    fixed: the address that config.yaml names. A healthy server that already listens there is used as it is, and `stop`
    leaves it alone. None: the system chooses a port at each start. residency: shared by all engines of the gateway;
    None: one of its own. grace: seconds between SIGTERM and SIGKILL.
    """

    failure: GatewayError | None = None
    """Why the state is failed."""
    backend: Backend | None = None
    """Sends requests to the engine; None unless a request may go to it at once, whatever its service tier. While flex
    answers could give way, all others come by `join`, too."""
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
    _backend: Backend | None = None
    """Of the running process, whatever its state."""
    _phase: Waiting | None = None
    """What the start in progress waits for."""
    _doubted = False
    """A request couldn't reach the address."""
    _recallable = False
    _restarts = False
    """It restarts although nobody waits, because it died in use."""
    _served = False
    """A request has ended since it became ready: its next failure is the first in a row."""
    _starting: asyncio.Task[None] | None = None
    _stopping: asyncio.Task[None] | None = None
    _watching: asyncio.Task[None] | None = None
    _drain_timer: asyncio.TimerHandle | None = None

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
        self.queue = RequestQueue()
        self.held = Footprint()
        """Its share of the budget while it is in memory."""
        self.places = Places()
        self.launcher = Launcher(self.residency, fixed, machine, grace)
        self.failures = Failures()
        self.usage = UsageSampler()
        self._lifecycle = Lifecycle()

    # What others see

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def state(self) -> State:
        return self._lifecycle.state

    @property
    def entered(self) -> float:
        """When the state began, by time.monotonic."""
        return self._lifecycle.entered

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
        return self.places.in_flight

    @property
    def idle_since(self) -> float:
        return self.places.idle_since

    @property
    def rank(self) -> int:
        """See `Places.rank`."""
        return self.places.rank

    @property
    def urgency(self) -> tuple[int, float] | None:
        """See `RequestQueue.urgency`."""
        return self.queue.urgency

    @property
    def waits_for(self) -> Waiting | None:
        """What requests in the queue wait for."""
        if self.state == "starting":
            return "load"
        if self.state in ("draining", "stopping"):
            return "drain"
        if self.state == "ready":
            return "place" if self.queue else None
        return self._phase

    def progress(self, key: object) -> Progress | None:
        """The progress of the request that joined with `key`; None once it no longer waits."""
        return progress_of(self, key)

    def status(self) -> EngineSnapshot:
        return snapshot_of(self)

    def on_change(self, watcher: Callable[[Engine], None]) -> None:
        """Calls `watcher` after each change of the state. It must not wait or raise."""
        self._lifecycle.on_change(lambda: watcher(self))

    def unloads_in(self) -> float | None:
        """Seconds until it ends because it is idle; None: it stays."""
        return unloads_in(self)

    async def missing(self) -> WeightsMissing | None:
        """Why no request can be answered; None if it runs. See `Launcher.missing`."""
        return await self.launcher.missing(self.model) if self._backend is None else None

    async def changed(self) -> None:
        """Waits for the next change of the state."""
        await self._lifecycle.changed()

    # Requests

    async def join(self, key: object = None, rank: int = DEFAULT) -> Backend:
        """Counts a request in and returns once the engine can answer it; `leave` counts it out again.

        Starts the engine if it doesn't run: once, however many requests wait. A caller that gives up doesn't end the
        start for the others. key: see `progress`. rank: of its service tier; with FLEX it waits for a free slot of the
        engine, too, and until nobody else waits. Raises WeightsMissing, ProviderModelNotLoaded if the engine fails to
        start or the wait was too long, ProviderRateLimit if too many requests wait already, and ProviderUnavailable if
        no engine is installed or its port is taken. The next call tries again.
        """
        while True:
            if (backend := self.accepting) is not None and (rank != FLEX or (not self.queue and self._free > 0)):
                if rank != FLEX and self._free <= 0 and (going := self._put_aside(1)):
                    await self.places.made(going)
                    if (backend := self.accepting) is None:
                        continue
                self.places.enter(rank)
                return backend
            if self.state != "ready" or backend is not None:
                # It doesn't run, or the request has to let others go first.
                return await self._wait_in_queue(key, rank)
            await self._settle_doubt()  # another request couldn't reach it

    async def join_again(self, key: object, waited: float) -> Backend:
        """Like `join`, for a flex answer that was put aside. waited: how long it had waited before, in seconds."""
        while self.state == "ready" and self.accepting is None:
            await self._settle_doubt()
        if (backend := self.accepting) is not None and not self.queue and self._free > 0:
            self.places.enter(FLEX)
            return backend
        return await self._wait_in_queue(key, FLEX, waited, begun=True)

    def hosts(self, reply: Flexible, seat: EngineSeat) -> None:
        """Registers an answer that can be put aside for other requests."""
        self.places.host(reply, seat)
        self.backend = None
        if self.state == "draining" and self._recallable:
            self._put_aside(self.in_flight)

    def _put_aside(self, count: int) -> list[asyncio.Task[None]]:
        return self.places.put_aside(count, self.residency.limits.flex_max_wait_seconds)

    def leave(self, rank: int = DEFAULT) -> None:
        """Counts a request out that has joined with this rank."""
        places = self.places
        places.leave(rank)
        if self.backend is not None:
            self._served = True
            if self.queue:
                self._serve()
        elif places.flexible:
            places.forget_rigid()
            if self.accepting is not None:
                self._served = True
                self._serve()
        if not places.in_flight:
            if self.state == "draining":
                self._end()
            elif self.residency.short:
                self.residency.schedule()

    async def ensure(self) -> Address:
        """Starts the engine if need be and returns its address. Raises what `join` raises."""
        await self.join()
        address = self.running_at
        self.leave()
        assert address is not None
        return address

    def lost(self) -> None:
        """Notes that a request couldn't reach `address`: the next `join` checks the engine before it uses it again."""
        if self.state == "ready":
            self._doubted = True
            self.backend = None
            if self.queue:
                self._start()

    @property
    def _free(self) -> int:
        """The number of free slots."""
        return self.places.free(slots(self.model))

    def _offer(self) -> None:
        self.backend = None if self.places.flexible else self.accepting

    def enter(self, rank: int) -> None:
        """Counts a request that doesn't have to wait."""
        self.places.enter(rank)

    async def _wait_in_queue(self, key: object, rank: int, waited: float = 0.0, *, begun: bool = False) -> Backend:
        limits = self.residency.limits
        patience = self.load_seconds or 5
        ticket = self.queue.add(key, self.name, limits.queue_length, patience, rank, waited, begun=begun)
        ages: asyncio.TimerHandle | None = None
        seconds = limits.queue_timeout_seconds
        if rank == FLEX:
            left = max(0.0, limits.flex_max_wait_seconds - waited)
            seconds += left
            ages = asyncio.get_running_loop().call_later(left, self._age, ticket)
        if self.accepting is None:
            self._start()
        if rank < FLEX and self.residency.claims:
            self.residency.schedule()  # its claim may have become more urgent
        try:
            return await self.queue.wait(ticket, seconds)
        except BaseException as error:
            if ticket.served:
                self.leave(rank)
            if not isinstance(error, TimeoutError):
                raise
            raise ProviderModelNotLoaded(
                f"model {self.name!r}: the request waited {seconds:g} s"
                f" (engines.queue_timeout_seconds): {_WAITED[self.waits_for]}",
                code="queue_timeout",
                retry_after=5,
            ) from None
        finally:
            if ages is not None:
                ages.cancel()
            self._give_up_unwanted_start()

    def _age(self, ticket: Ticket) -> None:
        """Lets flex requests that have waited long enough count like any other."""
        ticket.aged = True
        if self.accepting is not None:
            self._serve()

    def _give_up_unwanted_start(self) -> None:
        """Cancels a start that still waits for memory, if no request waits for it any more."""
        unwanted = not self.queue and not self._restarts and self.state not in ("starting", "ready")
        if unwanted and self._starting is not None:
            self._starting.cancel()

    def _serve(self) -> None:
        assert self._backend is not None
        self._offer()
        for ticket in self.queue.serve(self._backend, self._free):
            self.places.enter(ticket.rank)

    async def _settle_doubt(self) -> None:
        """Finds out whether a ready engine that a request did not reach still lives."""
        process = self.launcher.process
        if process is None:
            await self._forget()
        elif process.returncode is not None or await process.wait(DEATH_SECONDS):
            if self._watching is not None:
                await asyncio.wait({self._watching})
        elif self.launcher.process is process and self.state == "ready" and self._doubted:
            self._doubted = False
            self._serve()

    # Starting

    def _start(self) -> None:
        if self._starting is None or self._starting.done():
            self._phase = "memory"
            self._starting = asyncio.create_task(self._bring_up(), name=f"start {self.name}")

    async def _bring_up(self) -> None:
        """The only way to `ready`. A failure goes to all requests in the queue."""
        since = self.queue.since
        try:
            if await self._left_old_process():
                self._phase = "back-off"
                await self.failures.wait(self.failure)
                self._phase = "memory"
                self._came(await self._address_of_server(since))
        except GatewayError as error:
            await self._broke(error)
        except asyncio.CancelledError:
            # `stop` ends the process itself; otherwise the start only waited, and nobody waited for it.
            raise
        except BaseException:
            await self._broke(ProviderUnavailable(f"model {self.name!r}: its start failed; see the gateway's log"))
            raise
        finally:
            self._restarts = False
            if self.queue:
                # These requests came while the start was given up.
                asyncio.get_running_loop().call_soon(self._start_again)

    def _start_again(self) -> None:
        if self.queue and self.accepting is None:
            self._start()

    async def _left_old_process(self) -> bool:
        """Waits until the engine can start; False if it was recalled instead and serves."""
        while self.state in ("draining", "stopping", "ready"):
            if self.accepting is not None:
                return False
            await (self._settle_doubt() if self.state == "ready" else self.changed())
        return True

    async def _address_of_server(self, since: float) -> Address:
        """Where a server answers: the user's own at the fixed address, else one that is started once memory is free."""
        if (address := await self.launcher.adopt(self.model)) is not None:
            self._lifecycle.to("admit")
            return address
        return await self.launcher.launch(self, since)

    def admitted(self, footprint: Footprint) -> None:
        """Called when `residency` has granted the memory: the engine starts."""
        self.held = footprint
        self.failure = None
        self._lifecycle.to("admit")

    def _came(self, address: Address) -> None:
        """The server answers."""
        self.running_at = address
        self._backend = self.launcher.backend(self.model, address)
        self._served = False
        self.load_seconds = time.monotonic() - self.entered
        self.places.rest()
        self._lifecycle.to("came")
        if (process := self.launcher.process) is not None:
            self._watching = asyncio.create_task(self._watch(process), name=f"watch {self.name}")
        self._serve()
        if self.residency.short:
            self.residency.schedule()

    async def _broke(self, error: GatewayError) -> None:
        """The start failed."""
        if self.state not in ("starting", "stopped", "failed"):
            return
        if self.state == "starting":
            self.failures.add()
            if self.launcher.process is not None:
                # It runs if it answers but its backend can't be made.
                await self.launcher.process.stop()
        self.failure = error
        await self._gone("broke")
        self.queue.turn_away(error)

    # Running

    async def _watch(self, process: Process) -> None:
        supervisor = Supervisor(self, process)
        await supervisor.run()
        if self.state in ("ready", "draining"):
            await self._crashed(process, supervisor.stuck)

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
        self._offer()
        return before

    # Ending

    def drain(self, *, recallable: bool = False) -> None:
        """Takes no further requests and ends once the answers in flight have ended. Does nothing unless it is ready.

        recallable: `recall` may undo it.
        """
        if self.state != "ready":
            self._recallable = self._recallable and recallable
            return
        self.backend = None
        self._recallable = recallable
        self._lifecycle.to("drain")
        if self.queue:
            self._start()  # flex requests waited for a place
        if not self.in_flight:
            self._end()
            return
        if recallable and self.places.flexible:
            self._put_aside(self.in_flight)
        loop = asyncio.get_running_loop()
        self._drain_timer = loop.call_later(self.residency.limits.drain_timeout_seconds, self._end)

    def recall(self) -> None:
        """Ends a recallable drain because its memory isn't needed after all: the engine serves again."""
        if self.state == "draining" and self._recallable:
            self._cancel_drain_timer()
            self._lifecycle.to("recall")
            if not self._doubted:
                self._serve()

    async def retire(self) -> None:
        """Ends the engine once its answers in flight have ended. Returns when it is gone."""
        if self.state in ("starting", "failed"):
            await self.stop()
            return
        self.drain()
        while self.state not in ("stopped", "failed"):
            await self.changed()

    async def unload(self) -> None:
        """Ends the engine, even a pinned one, once its answers in flight have ended. Returns when it is gone.

        Requests that come meanwhile start it again. A starting engine ends once it has answered the waiting requests.
        """
        while self.state == "starting":
            await self.changed()
        self.drain()
        while self.state in ("draining", "stopping"):
            await self.changed()

    async def stop(self) -> None:
        """Ends the engine if we started it, even during its start. Returns once it is gone. Idempotent."""
        self.queue.turn_away(ProviderUnavailable(f"model {self.name!r}: its engine was stopped while it started"))
        starting = self._starting
        if starting is not None and not starting.done() and self.state != "starting":
            # It waits for its turn, and holds nothing yet.
            starting.cancel()
        self._end()
        if self._stopping is not None:
            await asyncio.shield(self._stopping)

    def _end(self) -> None:
        """Ends the process now, whatever it does."""
        if self._stopping is not None or self.state == "stopped":
            return
        if self.state == "failed":
            self.failure = None
            self._lifecycle.to("stop")
            return
        starting = self._starting if self.state == "starting" else None
        self._cancel_drain_timer()
        self.backend = None
        self._lifecycle.to("stop")
        self._stopping = asyncio.create_task(self._stop_process(starting), name=f"stop {self.name}")

    async def _stop_process(self, starting: asyncio.Task[None] | None) -> None:
        try:
            if starting is not None:
                starting.cancel()
                await asyncio.wait({starting})
            if self._watching is not None:
                self._watching.cancel()
            if (process := self.launcher.process) is not None:
                try:
                    await asyncio.gather(self.measure(with_gpu=False), self._save_prompts())
                finally:
                    await process.stop()
        finally:
            self._stopping = None
            await self._gone("gone")

    async def _save_prompts(self) -> None:
        if self._backend is not None:
            await self._backend.save_prompts()

    async def _forget(self) -> None:
        """Handles the end of a server that we didn't start: there is nothing to stop."""
        if self.state == "ready":
            self._lifecycle.to("drain")
            self._lifecycle.to("stop")
            await self._gone("gone")

    async def _crashed(self, process: Process, stuck: str | None) -> None:
        """The process ended by itself, or was killed because it was stuck."""
        self.crashes += 1
        if self._served:
            self.failures.forget()
        self.failures.add()
        assert self.launcher.plan is not None
        what = f"{stuck}, and was ended" if stuck is not None else ending(process, self.launcher.plan)
        self.failure = ProviderUnavailable(f"model {self.name!r}: its engine {what}{last_words(process)}", status=502)
        in_use = self.in_flight > 0
        await self._gone("broke")
        if in_use and not self.residency.claims:
            # Restart at once, so that the next request finds it ready.
            self._restarts = True
        if self.queue or self._restarts:
            self._start()

    async def _gone(self, event: Event) -> None:
        """No process of ours runs any more."""
        backend, self._backend = self._backend, None
        self.backend = self.running_at = self._watching = None
        self._doubted = False
        self.places.gone()
        self.launcher.gone()
        self._cancel_drain_timer()
        self.held = Footprint()
        self.gpu_seen = None
        if not self.queue:
            self.keep_alive = None
        self.residency.freed(self)
        self._lifecycle.to(event)
        self.residency.schedule()
        if backend is not None:
            await backend.aclose()

    def _cancel_drain_timer(self) -> None:
        if self._drain_timer is not None:
            self._drain_timer.cancel()
            self._drain_timer = None


_WAITED: dict[Waiting | None, str] = {
    "memory": "other models use the memory, and their answers have not ended",
    "drain": "answers in flight have not ended",
    "back-off": "its engine has failed repeatedly",
    "load": "its engine is still loading",
    "place": "other requests were before it at the engine",
    None: "its engine was not ready",
}


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

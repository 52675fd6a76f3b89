"""One engine: its process, its state and the requests that wait for it.

Which state follows which is `gateway.engines.states`' table; when, is decided here, and by `residency` for memory. All
of it runs in the event loop, each decision without a wait in it, so callers can't race. A request comes in through
`join`, which starts what has to be started, and goes out through `leave`.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar
from weakref import WeakSet

from msgspec.structs import replace

from gateway import backends
from gateway.backends import Address, Backend
from gateway.config import Model
from gateway.config.values import STARTABLE
from gateway.engines import memory
from gateway.engines.launch import adopted, check_weights, cure, last_words, launched
from gateway.engines.logfile import LogFile, log_path
from gateway.engines.machine import this_machine
from gateway.engines.memory import Footprint
from gateway.engines.process import Process
from gateway.engines.recipe import Machine, Recipe
from gateway.engines.residency import Residency
from gateway.engines.states import Event, State, after
from gateway.engines.status import Progress, Status, Waiting
from gateway.engines.watchdog import Signs, Watchdog
from gateway.errors import Backoff, GatewayError, ProviderModelNotLoaded, ProviderRateLimit, ProviderUnavailable

log = logging.getLogger("ctxgate")

ASK_SECONDS = 5.0
"""After as much silence in all answers an engine is asked whether it gets on, and has as long to say."""
DEATH_SECONDS = 1.0
"""Between the moment that an engine's socket closes and the moment that its process has ended."""
TICK_SECONDS = 1.0
"""Between two looks at a ready engine: its progress, its idleness, its memory."""
STOOD_STILL_TICKS = 3
"""A wait for one tick that lasts so long is one in which we didn't run ourselves."""
MEASURE_TICKS, MEASURE_GPU_TICKS = 5, 60
BACK_OFF = Backoff(0.25, 60.0)
"""Between starts that fail, from the second failure in a row on. After the first one it starts again at once."""
WAITED_SECONDS = 5.0
"""A longer back-off is answered with the failure instead of a wait."""


class Ticket:
    """A request that waits. key: what the caller knows it by."""

    __slots__ = ("granted", "key", "since")

    def __init__(self, key: object) -> None:
        self.key = key
        self.since = time.monotonic()
        self.granted: asyncio.Future[Backend] = asyncio.get_running_loop().create_future()


class Engine:
    """The engine of one model, started by the first `join`.

    fixed: the address that config.yaml names. A healthy server that already listens there is used as it is,
    and left alone by `stop`. None: an address that the system chooses at each start.
    residency: that of all engines of the gateway; None: one of its own.
    """

    _alive: ClassVar[WeakSet[Engine]] = WeakSet()
    """A port that another engine of this process holds must not be taken for a server of the user's."""

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
        self.state: State = "stopped"
        self.failure: GatewayError | None = None
        """Why the state is failed."""
        self.backend: Backend | None = None
        """How to ask the engine; None unless a request may go to it at once."""
        self.in_flight = 0
        """Requests between `join` and `leave`."""
        self.queue: list[Ticket] = []
        """The oldest first."""
        self.held = Footprint()
        """What it is counted with while it is in memory."""
        self.entered = time.monotonic()
        """When the state began."""
        self.idle_since = self.entered
        self.load_seconds: float | None = None
        self.starts = self.crashes = 0
        self._fixed = fixed
        self._machine = machine
        self._grace = grace
        self._address: Address | None = None
        self._backend: Backend | None = None
        self._doubted = False
        self._recallable = False
        self._restarts = False
        self._phase: Waiting | None = None
        self._failed_in_a_row = 0
        self._served = False
        """A request has ended since it is ready, so that its death is no failure in a row."""
        self._not_before = 0.0
        self._stuck: str | None = None
        self._process: Process | None = None
        self._plan: Recipe | None = None
        self._log: LogFile | None = None
        self._bringing: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._drain_timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._watchers: list[Callable[[Engine], None]] = []

    # What can be seen

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def address(self) -> Address | None:
        """Where the engine answers; None unless a request may go to it at once."""
        return self._address if self.backend is not None else None

    @property
    def pid(self) -> int | None:
        """Of the engine's process; None where none runs or it isn't ours."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def tail(self) -> list[str]:
        """The last lines that the engine's process wrote, also once it has ended."""
        return list(self._process.tail) if self._process is not None else []

    @property
    def waits_for(self) -> Waiting | None:
        """What requests in the queue wait for."""
        if self.state == "starting":
            return "load"
        if self.state in ("draining", "stopping"):
            return "drain"
        return self._phase if self.state != "ready" else None

    def loaded(self) -> float | None:
        """The part of its memory that a starting engine has filled, 0 to 1; None where that isn't known."""
        expected = self.held.ram + self.held.gpu
        if self.state != "starting" or not expected or self.pid is None:
            return None
        usage = memory.usage(self.pid)
        return min(0.99, usage.resident / expected) if usage is not None else None

    def progress(self, key: object) -> Progress | None:
        """How far the request that joined with `key` has come; None once it waits no more."""
        for at, ticket in enumerate(self.queue):
            if ticket.key is key:
                return Progress(self.waits_for or "load", at + 1, len(self.queue), self.loaded())
        return None

    def status(self) -> Status:
        pid = self.pid
        usage = memory.usage(pid) if pid is not None else None
        now = time.monotonic()
        return Status(
            name=self.name,
            state=self.state,
            pid=pid,
            address=str(self._address) if self._address is not None else None,
            in_flight=self.in_flight,
            waiting=len(self.queue),
            waits_for=self.waits_for if self.queue else None,
            loaded=self.loaded(),
            resident_bytes=usage.resident if usage is not None else 0,
            gpu_bytes=self.held.gpu,
            expected_bytes=self.held.ram + self.held.gpu or None,
            since=now - self.entered,
            idle_seconds=0.0 if self.in_flight else now - self.idle_since,
            load_seconds=self.load_seconds,
            starts=self.starts,
            crashes=self.crashes,
            pinned=self.model.residence.pinned,
            failure=str(self.failure) if self.failure is not None else None,
            note=self._plan.note if self._plan is not None else None,
        )

    def on_change(self, watcher: Callable[[Engine], None]) -> None:
        """`watcher` is called after each change of the state. It must not wait or raise."""
        self._watchers.append(watcher)

    async def changed(self) -> None:
        """Waits for the next change of the state."""
        await self._changed.wait()

    # Requests

    async def join(self, key: object = None) -> Backend:
        """Counts a request in, and returns once the engine can be asked; `leave` counts it out again.

        Starts the engine where it doesn't run. However many requests wait there is one start, and a caller that gives
        up doesn't end it for the others. key: see `progress`. Raises ProviderModelNotLoaded where the weights are
        missing, the engine fails to start or the wait was too long, ProviderRateLimit where too many wait already, and
        ProviderUnavailable where there is no engine to start or its port is taken. The next call tries again.
        """
        while True:
            if self.backend is not None:
                self.in_flight += 1
                return self.backend
            if self.state != "ready":
                return await self._queued(key)
            await self._look()

    def leave(self) -> None:
        """The end of a request that has joined."""
        self.in_flight -= 1
        if self.backend is not None:
            self._served = True
        if not self.in_flight:
            self.idle_since = time.monotonic()
            if self.state == "draining":
                self._end()
            elif self.residency.claims:
                self.residency.schedule()

    async def ensure(self) -> Address:
        """The address of the running engine, as after `join` and `leave`. Raises what `join` raises."""
        await self.join()
        address = self._address
        self.leave()
        assert address is not None
        return address

    def lost(self) -> None:
        """A request found nobody at `address`: the next one looks before it says so again."""
        if self.state == "ready":
            self._doubted = True
            self.backend = None

    async def _queued(self, key: object) -> Backend:
        limits = self.residency.limits
        if len(self.queue) >= limits.queue_length:
            raise ProviderRateLimit(
                f"model {self.name!r}: {len(self.queue)} requests wait already (engines.queue_length)",
                code="queue_full",
                retry_after=self.load_seconds or 5,
            )
        ticket = Ticket(key)
        self.queue.append(ticket)
        self._bring()
        try:
            async with asyncio.timeout(limits.queue_timeout_seconds):
                try:
                    return await ticket.granted
                except asyncio.CancelledError:
                    granted = ticket.granted
                    if granted.done() and not granted.cancelled() and granted.exception() is None:
                        self.leave()
                    raise
        except TimeoutError:
            raise ProviderModelNotLoaded(
                f"model {self.name!r}: the request waited {limits.queue_timeout_seconds:g} s"
                f" (engines.queue_timeout_seconds): {_WAITED[self.waits_for]}",
                code="queue_timeout",
                retry_after=5,
            ) from None
        finally:
            if ticket in self.queue:
                self.queue.remove(ticket)
            if not self.queue:
                self._unwanted()

    def _unwanted(self) -> None:
        """Nobody waits any more: a start that only waits for its turn is given up."""
        waits = self.state not in ("starting", "ready")
        if waits and not self._restarts and self._bringing is not None:
            self._bringing.cancel()

    def _serve(self) -> None:
        assert self._backend is not None
        self.backend = self._backend
        queue, self.queue = self.queue, []
        for ticket in queue:
            if not ticket.granted.done():
                self.in_flight += 1
                ticket.granted.set_result(self._backend)

    def _turn_away(self, error: GatewayError) -> None:
        queue, self.queue = self.queue, []
        for ticket in queue:
            if not ticket.granted.done():
                ticket.granted.set_exception(error)

    # States

    def _to(self, event: Event) -> None:
        self.state = after(self.state, event)
        self.entered = time.monotonic()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for watcher in self._watchers:
            watcher(self)

    def admitted(self, footprint: Footprint) -> None:
        """`residency` gave it its memory: it starts."""
        self.held = footprint
        self.failure = None
        self._to("admit")

    def drain(self, *, recallable: bool = False) -> None:
        """Takes no further requests, and ends once the answers in flight have ended. Nothing if it isn't ready.

        recallable: it may go on if the memory isn't needed after all.
        """
        if self.state != "ready":
            self._recallable = self._recallable and recallable
            return
        self.backend = None
        self._recallable = recallable
        self._to("drain")
        if not self.in_flight:
            self._end()
            return
        loop = asyncio.get_running_loop()
        self._drain_timer = loop.call_later(self.residency.limits.drain_timeout_seconds, self._end)

    def reconfigure(self, model: Model) -> Backend | None:
        """Takes over settings that need no other process.

        Returns the backend that was asked until now: who knows when its answers have ended closes it.
        """
        self.model = model
        if self._backend is None:
            return None
        before, self._backend = self._backend, backends.load(model.runtime)(model, self._address)
        if self.backend is not None:
            self.backend = self._backend
        return before

    def recall(self) -> None:
        """It may stay."""
        if self.state == "draining" and self._recallable:
            self._cancel_drain_timer()
            self._to("recall")
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

    async def stop(self) -> None:
        """Ends the engine if it is ours, also in the middle of its start. Returns once it is gone. Idempotent."""
        self._turn_away(ProviderUnavailable(f"model {self.name!r}: its engine was stopped while it started"))
        bringing = self._bringing
        if bringing is not None and not bringing.done() and self.state != "starting":
            # It waits for its turn, and holds nothing yet.
            bringing.cancel()
        self._end()
        if self._stopping is not None:
            await asyncio.shield(self._stopping)

    def _end(self) -> None:
        """The process is to go now, whatever it does."""
        if self._stopping is not None or self.state == "stopped":
            return
        if self.state == "failed":
            self.failure = None
            self._to("stop")
            return
        starting = self._bringing if self.state == "starting" else None
        self._cancel_drain_timer()
        self.backend = None
        self._to("stop")
        self._stopping = asyncio.create_task(self._stop(starting), name=f"stop {self.name}")

    async def _stop(self, starting: asyncio.Task[None] | None) -> None:
        try:
            if starting is not None:
                starting.cancel()
                await asyncio.wait({starting})
            if self._watching is not None:
                self._watching.cancel()
            await self._measure()
            if self._process is not None:
                await self._process.stop()
        finally:
            self._stopping = None
            await self._gone("gone")

    async def _gone(self, event: Event) -> None:
        """No process of ours runs any more."""
        backend, self._backend = self._backend, None
        self.backend = self._address = self._watching = None
        self._doubted = False
        self._cancel_drain_timer()
        self._alive.discard(self)
        self.held = Footprint()
        self.residency.freed(self)
        self._to(event)
        self.residency.schedule()
        if backend is not None:
            await backend.aclose()

    def _cancel_drain_timer(self) -> None:
        if self._drain_timer is not None:
            self._drain_timer.cancel()
            self._drain_timer = None

    async def _look(self) -> None:
        """Ends the doubt: the engine's process has ended, or lives; a server that isn't ours is to be found again."""
        process = self._process
        if process is None or process.returncode is not None:
            if process is None:
                await self._forget()
            elif self._watching is not None:
                await asyncio.wait({self._watching})
        elif await process.wait(DEATH_SECONDS):
            if self._watching is not None:
                await asyncio.wait({self._watching})
        elif self._process is process and self.state == "ready" and self._doubted:
            self._doubted = False
            self._serve()

    async def _forget(self) -> None:
        """A server that isn't ours has gone."""
        if self.state == "ready":
            self._to("drain")
            self._to("stop")
            await self._gone("gone")

    # Starting

    def _bring(self) -> None:
        if self._bringing is None or self._bringing.done():
            self._phase = "memory"
            self._bringing = asyncio.create_task(self._brought(), name=f"start {self.name}")

    async def _brought(self) -> None:
        """The one way to `ready`, for all that wait. What goes wrong, the requests in the queue are told."""
        since = self.queue[0].since if self.queue else time.monotonic()
        try:
            while self.state in ("draining", "stopping", "ready"):
                if self.backend is not None:
                    return  # recalled: all have been served
                await (self._look() if self.state == "ready" else self.changed())
            self._phase = "back-off"
            await self._back_off()
            self._phase = "memory"
            address = self._free_fixed()
            if address is not None and await adopted(self.model, address):
                self._process = self._plan = None
                self._to("admit")
            else:
                check_weights(self.model)
                await self.residency.admit(self, since)
                free = self._free_fixed()
                port = free.port if free is not None else None
                address = await launched(self.model, self._fit_machine, port, self._spawned)
            self._came(address)
        except GatewayError as error:
            await self._broke(error)
        except asyncio.CancelledError:
            # By `stop`, which sees to the process, or because nobody waited any more.
            raise
        except BaseException:
            await self._broke(ProviderUnavailable(f"model {self.name!r}: its start failed; the log tells why"))
            raise
        finally:
            self._restarts = False
            if self.queue:
                # They came while a start was being given up.
                asyncio.get_running_loop().call_soon(self._bring_again)

    def _bring_again(self) -> None:
        if self.queue:
            self._bring()

    def _came(self, address: Address) -> None:
        self._address = address
        self._backend = backends.load(self.model.runtime)(self.model, address)
        self._stuck = None
        self._served = False
        self.load_seconds = time.monotonic() - self.entered
        self.idle_since = time.monotonic()
        self._to("came")
        if self._process is not None:
            self._watching = asyncio.create_task(self._watch(self._process), name=f"watch {self.name}")
        self._serve()
        if self.residency.claims:
            self.residency.schedule()

    async def _broke(self, error: GatewayError) -> None:
        started = self.state == "starting"
        if self.state not in ("starting", "stopped", "failed"):
            return
        if started:
            self._later()
            if self._process is not None:
                # It may answer, and its backend can't be made.
                await self._process.stop()
        self.failure = error
        await self._gone("broke")
        self._turn_away(error)

    def _later(self) -> None:
        """Another failure in a row."""
        self._failed_in_a_row += 1
        self._not_before = time.monotonic() + BACK_OFF.delay(self._failed_in_a_row - 1)

    async def _back_off(self) -> None:
        """Waits until a failed engine may be tried again. Raises its failure where that is long."""
        left = self._not_before - time.monotonic()
        if left <= 0:
            return
        failure = self.failure
        if left > WAITED_SECONDS and failure is not None:
            raise type(failure)(
                failure.message, code=failure.code, retry_after=left, status=failure.status, details=failure.details
            )
        await asyncio.sleep(left)

    async def _spawned(self, plan: Recipe) -> Process:
        state_dir, files = self.residency.state_dir, self.residency.pid_files
        lines = LogFile(log_path(state_dir, self.name)) if state_dir is not None else None
        written: list[Path | None] = []

        def began(pid: int) -> None:
            if lines is not None:
                lines.note(f"{plan.engine} started, pid {pid}")
            if files is not None:
                try:
                    written.append(files.write(self.name, pid))
                except (OSError, subprocess.SubprocessError) as error:
                    log.warning("the engine of model %s can't be written down: %s", self.name, error)

        def ended() -> None:
            if process.illegal_instruction and plan.argv[0] not in self.residency.unfit:
                self.residency.unfit.add(plan.argv[0])
                log.warning("%s %s%s", plan.argv[0], process.ending(), cure(process, plan))
            if lines is not None:
                lines.note(f"{plan.engine} {process.ending()}")
                lines.close()
            for path in written:
                if path is not None:
                    path.unlink(missing_ok=True)

        try:
            process = await Process.start(
                plan.argv, plan.env, grace=self._grace, wrote=lines.write if lines is not None else None, began=began
            )
        except OSError as error:
            raise ProviderUnavailable(f"model {self.name!r}: no process for {plan.engine}: {error}") from error
        process.on_end(ended)
        self._process = process
        self._plan = plan
        self.starts += 1
        self._alive.add(self)
        return process

    def _fit_machine(self) -> Machine:
        return replace(self._machine(), unfit=frozenset(self.residency.unfit))

    def _free_fixed(self) -> Address | None:
        """The address that config.yaml names, unless another model's engine of this gateway holds its port."""
        fixed = self._fixed
        if fixed is None:
            return None
        others = (engine._address for engine in self._alive if engine is not self)
        taken = any(address is not None and address.port == fixed.port for address in others)
        return None if taken else fixed

    # Running

    async def _watch(self, process: Process) -> None:
        """As long as the process runs, and its end."""
        watchdog = Watchdog(*self._patience())
        ticks = 0
        seen = True
        while True:
            try:
                await self._look_after(process, watchdog, ticks)
            except Exception:
                # Whatever can't be found out of it: nobody else would see it end.
                if seen:
                    log.exception("model %s: its engine can't be watched closely", self.name)
                seen = False
            if await self._ended(process, watchdog):
                break
            ticks += 1
        if self.state in ("ready", "draining"):
            await self._crashed(process)

    async def _look_after(self, process: Process, watchdog: Watchdog, ticks: int) -> None:
        """Measures the engine, ends it where it is stuck, and lets it go where nobody has needed it for long."""
        if ticks % MEASURE_TICKS == 0:
            await self._measure(with_gpu=ticks % MEASURE_GPU_TICKS == 0)
        if self.in_flight:
            if (why := await self._stuck_now(watchdog)) is not None:
                self._stuck = why
                process.kill()
            return
        watchdog.rest()
        ttl = self.model.residence.idle_ttl_seconds
        if ttl is not None and not self.model.residence.pinned and time.monotonic() - self.idle_since >= ttl:
            self.drain()

    async def _ended(self, process: Process, watchdog: Watchdog) -> bool:
        """Whether the process has ended within a tick."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        ended = await process.wait(TICK_SECONDS)
        if loop.time() - begun > STOOD_STILL_TICKS * TICK_SECONDS:
            # So did the engine, maybe: a machine or a container that was paused.
            watchdog.rest()
        return ended

    def _patience(self) -> tuple[float, float]:
        """Before the backend gives each answer up by itself."""
        model = self.model
        return model.residence.stall_timeout_seconds, max(1.0, model.request_timeout - 2 * TICK_SECONDS)

    async def _stuck_now(self, watchdog: Watchdog) -> str | None:
        loop = asyncio.get_running_loop()
        backend, pid = self._backend, self.pid
        heard = getattr(backend, "heard", None)
        last = heard() if heard is not None else None
        if last is None or pid is None:
            watchdog.rest()
            return None
        watchdog.limits(*self._patience())
        soon = min(ASK_SECONDS, watchdog.stall / 4)
        if watchdog.silent(loop.time()) < soon:
            return watchdog.stuck(loop.time(), Signs(last))
        told = None
        progress = getattr(backend, "progress", None)
        if progress is not None:
            try:
                async with asyncio.timeout(soon):
                    told = await progress()
            except (GatewayError, TimeoutError):
                told = None
        usage = memory.usage(pid)
        return watchdog.stuck(loop.time(), Signs(last, told, usage.cpu if usage is not None else None))

    async def _measure(self, *, with_gpu: bool = True) -> None:
        """Learns what the engine needs, while it runs."""
        pid = self.pid
        usage = memory.usage(pid) if pid is not None else None
        if usage is None or pid is None or self.model.path is None or self.state == "starting":
            return
        on_gpu = 0
        budget = self.residency.budget
        if budget is not None and budget.gpu is not None:
            on_gpu = self.held.gpu
            if with_gpu:
                from gateway.engines import gpu

                on_gpu = (await asyncio.to_thread(gpu.by_process)).get(pid, 0)
        # On a GPU, the weights that are mapped from the file are read once and needed no more.
        seen = Footprint(usage.anonymous if on_gpu else usage.peak, on_gpu)
        try:
            self.residency.learnt.saw(self.model, seen, self.load_seconds)
        except OSError:
            return  # the weights were taken away meanwhile
        if self.model.residence.memory is None and self.state in ("ready", "draining"):
            before, self.held = self.held, self.held.largest(seen)
            if before != self.held:
                self.residency.schedule()

    async def _crashed(self, process: Process) -> None:
        """The process ended by itself, or because it was stuck."""
        self.crashes += 1
        if self._served:
            self._failed_in_a_row = 0
        self._later()
        assert self._plan is not None
        ended = f"{process.ending()}{cure(process, self._plan)}"
        what = f"{self._stuck}, and was ended" if self._stuck is not None else ended
        self.failure = ProviderUnavailable(f"model {self.name!r}: its engine {what}{last_words(process)}", status=502)
        busy = self.in_flight > 0
        self._watching = None
        await self._gone("broke")
        if busy and not self.residency.claims:
            # It was in use: the next request is to find it ready.
            self._restarts = True
        if self.queue or self._restarts:
            self._bring()


_WAITED: dict[Waiting | None, str] = {
    "memory": "other models use the memory, and their answers have not ended",
    "drain": "answers in flight have not ended",
    "back-off": "its engine has failed repeatedly",
    "load": "its engine is still loading",
    None: "its engine was not ready",
}


def for_model(model: Model, residency: Residency | None = None) -> Engine | None:
    """The engine that the gateway is to start for a model; None where its server is external."""
    startable = model.runtime in STARTABLE or (model.engine.command is not None and model.runtime != "ollama")
    if model.path is None or not startable:
        return None
    fixed = None
    if model.port is not None:
        fixed = Address.parse(model.base_url) if model.base_url is not None else Address(port=model.port)
    elif model.base_url is not None or model.uds is not None:
        # An address without a port of this machine is a server that somebody else runs.
        return None
    return Engine(model, fixed, residency=residency)

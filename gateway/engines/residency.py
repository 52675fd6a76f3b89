"""The memory of a gateway's engines: carries out the decisions of `admission.plan`.

An engine that wants to start claims memory here; `admission` decides which claim gets it and which engines give way.
"""

from __future__ import annotations

import asyncio
import time
from bisect import insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gateway.backends import Address
from gateway.config import Engines, Model
from gateway.engines import admission, memory, recipe
from gateway.engines.admission import Plan, Resident, Snapshot
from gateway.engines.learnt import Learnt
from gateway.engines.memory import Budget, Footprint, estimate, machine_budget
from gateway.engines.pidfile import PidFiles
from gateway.engines.states import State
from gateway.errors import ProviderModelNotLoaded, WeightsMissing
from gateway.prompts.saved import SavedPrompts
from gateway.wire.chat import DEFAULT


class EngineForResidency(Protocol):
    """An engine as `Residency` sees it; `gateway.engines.engine.Engine` is one."""

    model: Model
    held: Footprint
    gpu_seen: int | None
    load_seconds: float | None
    pauses: bool
    """See `admission.Resident`; this module sets it."""

    @property
    def state(self) -> State: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def idle_since(self) -> float: ...
    @property
    def entered(self) -> float:
        """When the state began, by time.monotonic."""
        ...

    @property
    def rank(self) -> int:
        """The best of its requests in flight or, if it is idle, of the last one; see `admission`."""
        ...

    @property
    def urgency(self) -> tuple[int, float] | None:
        """The best rank of the requests that wait for it, and since when; None if none does."""
        ...

    def admitted(self, footprint: Footprint) -> None:
        """It now holds `footprint`, and starts."""
        ...

    def drain(self, *, recallable: bool = False) -> None: ...
    def recall(self) -> None: ...


@dataclass(eq=False)
class Pending:
    """A claim that waits. since: when the engine's first request came."""

    since: float
    engine: EngineForResidency
    need: Footprint
    granted: asyncio.Future[None]


class Residency:
    """All engines of a gateway, and which of them may be in memory.

    state_dir: folder for learnt sizes, pid files and logs; None: writes none of them. budget: what the machine can
    spare, asked once; `limits` overrule it. prompts: those that engines save; None: none do.
    """

    def __init__(
        self,
        limits: Engines | None = None,
        *,
        state_dir: Path | None = None,
        budget: Callable[[], Budget] = machine_budget,
        prompts: SavedPrompts | None = None,
    ) -> None:
        self.limits = limits if limits is not None else Engines()
        self.state_dir = state_dir
        self.prompts = prompts
        self.learnt = Learnt(state_dir / "engines.json" if state_dir is not None else None)
        self.pid_files = PidFiles(state_dir / "engines") if state_dir is not None else None
        self.claims: list[Pending] = []
        """The oldest first."""
        self.residents: list[EngineForResidency] = []
        """Engines that hold memory."""
        self.short = False
        """Claims wait, or engines hold more than the budget: call `schedule` when an engine becomes idle."""
        self.waits_for: Mapping[object, tuple[str, ...]] = {}
        """Engine that waits for memory → names of the models that hold the memory."""
        self.unfit: set[str] = set()
        """Programs that SIGILL killed: they were built for another processor. Engines start others if they can."""
        self._ports: dict[object, int | None] = {}
        """Engine → the port at which its process answers."""
        self._machine_budget = budget
        self._machine: Budget | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wanted_plans = 0
        """Calls of `schedule` since a running one began."""

    async def open(self) -> None:
        """Ends the engines that a killed gateway left behind."""
        if self.pid_files is not None and self.pid_files.folder.exists():
            await asyncio.to_thread(self.pid_files.reap)

    @property
    def budget(self) -> Budget | None:
        """Memory that all engines may use together; None until the first engine claims memory."""
        return None if self._machine is None else memory.limited(self._machine, self.limits)

    async def admit(self, engine: EngineForResidency, since: float) -> None:
        """Returns once `engine` holds its memory and is starting.

        Raises ProviderModelNotLoaded if it can never have that much, WeightsMissing if its weights can't be read.
        """
        need = await self.need(engine.model)
        if engine.load_seconds is not None:  # it was in memory before
            engine.pauses = since - engine.idle_since > admission.stay(engine.load_seconds)
        claim = Pending(since, engine, need, asyncio.get_running_loop().create_future())
        insort(self.claims, claim, key=lambda each: each.since)
        self.schedule()
        try:
            await claim.granted
        finally:
            if claim in self.claims:
                self.claims.remove(claim)
                self.schedule()

    def freed(self, engine: EngineForResidency) -> None:
        """The process of `engine` has ended; call `schedule` next."""
        if engine in self.residents:
            self.residents.remove(engine)

    def holds_port(self, owner: object, address: Address | None) -> None:
        """The process of `owner` answers there; None: it has ended."""
        if address is None:
            self._ports.pop(owner, None)
        else:
            self._ports[owner] = address.port

    def ports_but(self, owner: object) -> set[int | None]:
        """The ports of all engines but `owner`'s, which must not be mistaken for those of a user's own server."""
        return {port for each, port in self._ports.items() if each is not owner}

    async def measure(
        self, engine: EngineForResidency, pid: int, *, with_gpu: bool, seconds_per_token: float = 0.0
    ) -> None:
        """Measures the memory of `engine`'s process; if it is more than planned, others may have to give way.

        with_gpu: runs the GPU's tool too, which takes up to a second. seconds_per_token: how it reads; 0: unknown.
        """
        usage = await asyncio.to_thread(memory.usage, pid)
        if usage is None:
            return
        on_gpu = 0
        if self.budget is not None and self.budget.gpu is not None:
            on_gpu = engine.held.gpu
            if with_gpu:
                from gateway.engines import gpu

                engine.gpu_seen = (await asyncio.to_thread(gpu.by_process)).get(pid)
                on_gpu = engine.gpu_seen or 0
        # With a GPU, weights mapped from the file are read once and needed no more.
        seen = Footprint(usage.anonymous if on_gpu else usage.peak, on_gpu)
        try:
            self.learnt.saw(engine.model, seen, engine.load_seconds, seconds_per_token)
        except OSError:
            return  # the weights were removed meanwhile
        if engine.model.residence.memory is None and engine.state in ("ready", "draining"):
            before, engine.held = engine.held, engine.held.largest(seen)
            if before != engine.held:
                self.schedule()

    def schedule(self) -> None:
        """Plans again and carries the plan out. Call it after any change."""
        self._wanted_plans += 1
        if self._wanted_plans > 1:
            return  # what a plan does to an engine is such a change, and the loop below makes another one
        try:
            made = 0
            while made < self._wanted_plans:
                made = self._wanted_plans
                self._schedule()
        finally:
            self._wanted_plans = 0

    def close(self) -> None:
        self._cancel_timer()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def need(self, model: Model) -> Footprint:
        """How much memory the model's engine will use: as configured, else as measured earlier, else as estimated."""
        if self._machine is None:
            self._machine = await asyncio.to_thread(self._machine_budget)
        budget = self.budget
        assert budget is not None
        on_gpu = budget.gpu is not None
        if model.residence.memory is not None:
            return Footprint(gpu=model.residence.memory) if on_gpu else Footprint(model.residence.memory)
        try:
            cache = Footprint(await self.cache_ram(model) or 0)
            estimated = cache + await asyncio.to_thread(estimate, model, on_gpu=on_gpu)
            peak = self.learnt.peak(model)
            if peak is not None and peak.ram:
                # The peak may include any part of the prompt cache.
                full = min(peak.ram + cache.ram, max(peak.ram, estimated.ram))
                return Footprint(full, peak.gpu)
            return estimated
        except OSError as error:
            raise _unreadable(model, error) from error

    async def cache_ram(self, model: Model) -> int | None:
        """Bytes in which the model's engine may keep prompts beside its slots: at most one full window; None for an
        engine without such a cache. Raises WeightsMissing if the weights can't be read."""
        if self.prompts is None or model.runtime != "llama.cpp" or model.engine.command is not None:
            return None
        if model.role != "chat":
            return 0
        if (written := recipe.cache_ram(model)) is not None:
            return written
        try:
            window = await asyncio.to_thread(memory.window_bytes, model)
        except OSError as error:
            raise _unreadable(model, error) from error
        return -(-min(window, self.prompts.settings.cache_ram) // memory.MB) * memory.MB

    def _schedule(self) -> None:
        self._cancel_timer()
        budget = self.budget
        if budget is None:
            return
        now = time.monotonic()
        plan = admission.plan(self._snapshot(budget), now)
        self.short = plan.short
        self.waits_for = plan.waits_for
        self._answer_claims(plan)
        for engine in self.residents[:]:
            if engine not in plan.drains:
                if engine.state == "draining":
                    engine.recall()
            elif engine.state == "ready":
                engine.drain(recallable=True)
        if plan.recheck_at is not None:
            delay = max(0.0, plan.recheck_at - now)
            self._timer = asyncio.get_running_loop().call_later(delay, self.schedule)

    def _snapshot(self, budget: Budget) -> Snapshot:
        claims = tuple(_claim(claim) for claim in self.claims if not claim.granted.done())
        residents = tuple(
            Resident(
                key=engine,
                name=engine.model.name,
                state=engine.state,
                held=engine.held,
                in_flight=engine.in_flight,
                ready_since=engine.entered,
                idle_since=engine.idle_since,
                load_seconds=engine.load_seconds,
                pinned=engine.model.residence.pinned,
                group=engine.model.residence.group,
                rank=engine.rank,
                pauses=engine.pauses,
            )
            for engine in self.residents
        )
        limits = self.limits
        waits = limits.swap_after_seconds, limits.flex_max_wait_seconds
        return Snapshot(budget, claims, residents, limits.excludes, *waits)

    def _answer_claims(self, plan: Plan) -> None:
        for claim in self.claims[:]:
            if claim.granted.done():
                continue
            if claim.engine in plan.grants:
                self.claims.remove(claim)
                self.residents.append(claim.engine)
                claim.engine.admitted(claim.need)
                claim.granted.set_result(None)
            elif (why := plan.refusals.get(claim.engine)) is not None:
                self.claims.remove(claim)
                claim.granted.set_exception(ProviderModelNotLoaded(why, code="no_memory"))


def _claim(pending: Pending) -> admission.Claim:
    engine = pending.engine
    rank, since = engine.urgency or (DEFAULT, pending.since)
    return admission.Claim(engine, engine.model.name, pending.need, engine.model.residence.group, rank, since)


def _unreadable(model: Model, error: OSError) -> WeightsMissing:
    return WeightsMissing(f"model {model.name!r}: its weights can't be read: {error}", param="model")

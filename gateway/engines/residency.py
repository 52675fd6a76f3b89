"""Which engines may be in memory: admission by bytes, eviction, groups that exclude each other.

Whoever wants to start claims memory here. Claims are served in the order in which their first request came; an engine
that must give way ends its answers first. A younger claim is served before an older one only where it takes nothing
from it. So none starves: an engine in use has to give way once it has been ready for its `stay`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.config import Engines, Model
from gateway.engines.learnt import Learnt
from gateway.engines.memory import MB, Budget, Footprint, estimate, machine_budget
from gateway.engines.pidfile import PidFiles
from gateway.errors import ProviderModelNotLoaded

if TYPE_CHECKING:
    from gateway.engines.engine import Engine

log = logging.getLogger("ctxgate")

STAY_SECONDS = (0.25, 10.0)
"""How long an engine in use stays although others wait: as long as it took to load, within these bounds."""
RELOAD_SECONDS = 0.05
"""The least that a reload is taken to cost."""


@dataclass(order=True)
class Claim:
    """`engine` wants to start. `since` is when its first request came."""

    since: float
    engine: Engine = field(compare=False)
    need: Footprint = field(compare=False)
    granted: asyncio.Future[None] = field(compare=False)


class Residency:
    """All engines of a gateway, and who of them may be in memory.

    state_dir: for what is learnt, pid files and logs; None: nothing is kept. budget: what the machine can spare, asked
    once; `limits` go before it.
    """

    def __init__(
        self,
        limits: Engines | None = None,
        *,
        state_dir: Path | None = None,
        budget: Callable[[], Budget] = machine_budget,
    ) -> None:
        self.limits = limits if limits is not None else Engines()
        self.state_dir = state_dir
        self.learnt = Learnt(state_dir / "engines.json" if state_dir is not None else None)
        self.pid_files = PidFiles(state_dir / "engines") if state_dir is not None else None
        self.claims: list[Claim] = []
        """The oldest first."""
        self.residents: list[Engine] = []
        """Engines that hold memory."""
        self.unfit: set[str] = set()
        """Programs that no engine starts again while another can be started: they were built for another processor."""
        self._machine_budget = budget
        self._machine: Budget | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._scheduling = self._again = False

    async def open(self) -> None:
        """Ends the engines that a killed gateway left behind."""
        if self.pid_files is not None and self.pid_files.folder.exists():
            await asyncio.to_thread(self.pid_files.reap)

    @property
    def budget(self) -> Budget | None:
        """None until the first engine asked for memory."""
        machine, limits = self._machine, self.limits
        if machine is None:
            return None
        gpu = limits.gpu_memory_budget if limits.gpu_memory_budget is not None else machine.gpu
        if limits.memory_budget is not None:
            return Budget(limits.memory_budget, gpu, strict=True)
        return Budget(machine.ram, gpu, strict=limits.gpu_memory_budget is not None)

    @property
    def held(self) -> Footprint:
        """By all engines together."""
        return _together(self.residents)

    async def admit(self, engine: Engine, since: float) -> None:
        """Returns once `engine` holds its memory and is starting.

        Raises ProviderModelNotLoaded where it can never have so much.
        """
        need = await self._need(engine.model)
        claim = Claim(since, engine, need, asyncio.get_running_loop().create_future())
        insort(self.claims, claim)
        self.schedule()
        try:
            await claim.granted
        finally:
            if claim in self.claims:
                self.claims.remove(claim)
                self.schedule()

    def freed(self, engine: Engine) -> None:
        """The process of `engine` has gone; `schedule` makes something of it."""
        if engine in self.residents:
            self.residents.remove(engine)

    def schedule(self) -> None:
        """Serves what claims can be served, and asks engines to give way to the others. Call it after any change."""
        if self._scheduling:
            self._again = True
            return
        self._scheduling = True
        try:
            while True:
                self._again = False
                self._schedule()
                if not self._again:
                    return
        finally:
            self._scheduling = False

    async def _need(self, model: Model) -> Footprint:
        if self._machine is None:
            self._machine = await asyncio.to_thread(self._machine_budget)
        budget = self.budget
        assert budget is not None
        on_gpu = budget.gpu is not None
        if model.residence.memory is not None:
            return Footprint(gpu=model.residence.memory) if on_gpu else Footprint(model.residence.memory)
        try:
            peak = self.learnt.peak(model)
            if peak is not None and peak.ram:
                return Footprint(peak.ram, peak.gpu)
            return await asyncio.to_thread(estimate, model, on_gpu=on_gpu)
        except OSError as error:
            raise ProviderModelNotLoaded(
                f"model {model.name!r}: its weights can't be read: {error}", code="weights_missing"
            ) from error

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        going: list[Engine] = []
        reserved = Footprint()
        for claim in self.claims[:]:
            if claim.granted.done():
                continue
            victims = self._make_room(claim, reserved, going)
            if victims is None:
                continue
            going += victims
            reserved += claim.need
        if not self.claims:
            going += self._too_many()
        for engine in self.residents[:]:
            if engine in going:
                if engine.state == "ready":
                    engine.drain(recallable=True)
            elif engine.state == "draining":
                engine.recall()

    def _make_room(self, claim: Claim, reserved: Footprint, going: list[Engine]) -> list[Engine] | None:
        """Serves the claim, or refuses it: None. Else the engines that give way to it: none where it has to wait.

        reserved: for older claims, that `going` give way to.
        """
        budget = self.budget
        assert budget is not None
        engine, need = claim.engine, claim.need
        if budget.strict and not budget.holds(need):
            self._refuse(claim, f"needs {_mb(need)}, which is more than engines may hold ({_mb(budget)})")
            return None
        against = [other for other in self.residents if self.exclude(engine.model, other.model)]
        if not against and self._fits(budget, self.residents, reserved + need):
            self.claims.remove(claim)
            self.residents.append(engine)
            engine.admitted(need)
            claim.granted.set_result(None)
            return None
        stay = [other for other in self.residents if other.state != "stopping" and other not in going]
        victims = [other for other in against if other in stay]
        stay = [other for other in stay if other not in victims]
        now = time.monotonic()
        chosen: list[Engine] = []
        for other in sorted(stay, key=lambda other: _worth(other, now)):
            if self._fits(budget, stay, reserved + need):
                break
            if not other.model.residence.pinned and other.state in ("ready", "draining"):
                stay.remove(other)
                chosen.append(other)
        if not self._fits(budget, stay, reserved + need):
            fixed = [other for other in stay if other.model.residence.pinned]
            if fixed and not self._fits(budget, fixed, need):
                names = ", ".join(other.model.name for other in fixed)
                self._refuse(claim, f"needs {_mb(need)}; {names} keep {_mb(_together(fixed))} of {_mb(budget)}")
                return None
            # Others start just now, or are about to: they can give way only later.
            return []
        if pinned := [other for other in victims if other.model.residence.pinned]:
            names = ", ".join(other.model.name for other in pinned)
            self._refuse(claim, f"may not be in memory together with {names}, which is pinned")
            return None
        for other in reversed(chosen[:]):
            # A large one that was chosen later may have made an earlier choice needless.
            if self._fits(budget, [*stay, other], reserved + need):
                chosen.remove(other)
                stay.append(other)
        victims += chosen
        later = [other for other in victims if _stay_left(other, now) > 0]
        if later:
            self._look_again(min(_stay_left(other, now) for other in later))
        return [other for other in victims if other not in later and other.state in ("ready", "draining")]

    def _too_many(self) -> list[Engine]:
        """Engines that turned out to need more than was thought: those out of use give way."""
        budget = self.budget
        if budget is None:
            return []
        stay = [other for other in self.residents if other.state != "stopping"]
        now = time.monotonic()
        victims = []
        for other in sorted(stay, key=lambda other: _worth(other, now)):
            if len(stay) < 2 or self._fits(budget, stay, Footprint()):
                break
            if other.state == "ready" and not other.in_flight and not other.model.residence.pinned:
                stay.remove(other)
                victims.append(other)
        return victims

    def exclude(self, one: Model, other: Model) -> bool:
        """Whether their groups forbid both in memory at a time."""
        ours, theirs = one.residence.group, other.residence.group
        if ours is None or theirs is None:
            return False
        excludes = self.limits.excludes
        return theirs in excludes.get(ours, ()) or ours in excludes.get(theirs, ())

    def _fits(self, budget: Budget, engines: Iterable[Engine], more: Footprint) -> bool:
        """Without a strict budget, one engine alone always fits: its size may be estimated wrongly."""
        engines = list(engines)
        return budget.holds(_together(engines) + more) or (not engines and not budget.strict)

    def _refuse(self, claim: Claim, why: str) -> None:
        self.claims.remove(claim)
        cure = "raise engines.memory_budget, or give the model a smaller context_window or parallel"
        claim.granted.set_exception(
            ProviderModelNotLoaded(f"model {claim.engine.model.name!r} {why}; {cure}", code="no_memory")
        )

    def _look_again(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        if self._timer is None or self._timer.when() > when:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(when, self.schedule)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _together(engines: Iterable[Engine]) -> Footprint:
    return reduce(add, (engine.held for engine in engines), Footprint())


def _stay_left(engine: Engine, now: float) -> float:
    """Seconds for which an engine in use is left alone."""
    if not engine.in_flight or engine.state == "draining":
        return 0.0
    stay = min(max(engine.load_seconds or 0.0, STAY_SECONDS[0]), STAY_SECONDS[1])
    return max(0.0, engine.entered + stay - now)


def _worth(engine: Engine, now: float) -> tuple[int, float]:
    """What is lost when the engine gives way; the least first. Idle ones by how long they were idle for their cost."""
    reload = max(engine.load_seconds or 0.0, RELOAD_SECONDS)
    if engine.state == "draining":
        return (0, 0.0)
    if not engine.in_flight:
        return (1, -(now - engine.idle_since) / reload)
    return (2, reload + engine.in_flight)


def _mb(size: Footprint | Budget) -> str:
    gpu = f" and {size.gpu // MB} MB of GPU memory" if size.gpu else ""
    return f"{-(-size.ram // MB)} MB{gpu}"

"""Which engines may be in memory: admission by bytes, eviction, groups that exclude each other. No I/O.

Claims are served in the order in which their first request came. A younger claim is served before an older one only if
it takes nothing from it. An engine in use has to give way once it has been ready for its stay, so no claim starves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import add

from msgspec import Struct, field

from gateway.engines.memory import MB, Budget, Footprint
from gateway.engines.states import State

STAY_SECONDS = (0.25, 10.0)
"""An engine in use stays as long as it took to load, within these bounds, before it gives way to others."""
RELOAD_SECONDS = 0.05
"""The least that a reload counts as."""
CURE = "raise engines.memory_budget, or give the model a smaller context_window or parallel"


class Claim(Struct, frozen=True):
    """An engine wants to start. key: identifies it, hashable; two engines of one model can exist during a reload."""

    key: object
    name: str
    need: Footprint
    group: str | None = None


class Resident(Struct, frozen=True):
    """An engine that holds memory. ready_since and idle_since: by the clock of `plan`'s `now`."""

    key: object
    name: str
    state: State
    held: Footprint
    in_flight: int = 0
    ready_since: float = 0.0
    idle_since: float = 0.0
    load_seconds: float | None = None
    pinned: bool = False
    group: str | None = None

    def stay_left(self, now: float) -> float:
        """Seconds for which an engine in use need not give way."""
        if not self.in_flight or self.state == "draining":
            return 0.0
        shortest, longest = STAY_SECONDS
        stay = min(max(self.load_seconds or 0.0, shortest), longest)
        return max(0.0, self.ready_since + stay - now)

    def worth(self, now: float) -> tuple[int, float]:
        """The engine with the least worth gives way first. Idle time counts against the cost of a reload."""
        reload = max(self.load_seconds or 0.0, RELOAD_SECONDS)
        if self.state == "draining":
            return (0, 0.0)
        if not self.in_flight:
            return (1, -(now - self.idle_since) / reload)
        return (2, reload + self.in_flight)


class Snapshot(Struct, frozen=True):
    """All that a plan depends on. claims: the oldest first. excludes: group → groups that may not share memory."""

    budget: Budget
    claims: tuple[Claim, ...] = ()
    residents: tuple[Resident, ...] = ()
    excludes: Mapping[str, frozenset[str]] = field(default_factory=dict)


class Plan(Struct, frozen=True):
    """What to do now, by the engines' keys.

    grants: may start now. refusals: can never start, and why. drains: must give way, those that drain already
    included; a draining engine outside of it may stay. recheck_at: when to plan again at the latest. short: plan again
    as soon as an engine becomes idle.
    """

    grants: tuple[object, ...] = ()
    refusals: Mapping[object, str] = field(default_factory=dict)
    drains: frozenset[object] = frozenset()
    recheck_at: float | None = None
    short: bool = False


def plan(state: Snapshot, now: float) -> Plan:
    draft = _Draft(state, now)
    waiting = [claim for claim in state.claims if not draft.decide(claim)]
    short = bool(waiting) or not draft.shrink()
    return Plan(tuple(draft.grants), draft.refusals, frozenset(draft.drains), draft.recheck_at, short)


class _Draft:
    """A plan in the making: each decision sees the ones before it."""

    def __init__(self, state: Snapshot, now: float) -> None:
        self.grants: list[object] = []
        self.refusals: dict[object, str] = {}
        self.drains: set[object] = set()
        self.recheck_at: float | None = None
        self._budget = state.budget
        self._excludes = state.excludes
        self._residents = list(state.residents)
        self._reserved = Footprint()
        """For older claims, to which `drains` give way."""
        self._now = now

    def decide(self, claim: Claim) -> bool:
        """Grants or refuses the claim; False if it has to wait for others to give way."""
        rivals = [other for other in self._residents if self._excluded(claim.group, other.group)]
        if (why := self._refusal(claim, rivals)) is not None:
            self.refusals[claim.key] = f"model {claim.name!r} {why}; {CURE}"
            return True
        if not rivals and self._fits(self._residents, self._reserved + claim.need):
            self.grants.append(claim.key)
            self._residents.append(Resident(claim.key, claim.name, "starting", claim.need, group=claim.group))
            return True
        self._make_room(claim, rivals)
        self._reserved += claim.need
        return False

    def shrink(self) -> bool:
        """Running engines may need more than planned: idle ones give way, but never the last engine.

        False if the others still hold too much.
        """
        stay = self._staying()
        for other in self._least_worth(stay):
            if len(stay) < 2 or self._fits(stay, Footprint()):
                break
            if other.state == "ready" and not other.in_flight and not other.pinned:
                stay.remove(other)
                self.drains.add(other.key)
        return len(stay) < 2 or self._fits(stay, Footprint())

    def _refusal(self, claim: Claim, rivals: list[Resident]) -> str | None:
        """Why the claim can't be granted whoever gives way."""
        budget, need = self._budget, claim.need
        if budget.strict and not budget.holds(need):
            return f"needs {_mb(need)}, which is more than engines may hold ({_mb(budget)})"
        pinned = [other for other in self._staying() if other.pinned]
        beside = [other for other in pinned if other not in rivals]
        if beside and not self._fits(beside, need):
            return f"needs {_mb(need)}; {_names(beside)} keep {_mb(_together(beside))} of {_mb(budget)}"
        if against := [other for other in pinned if other in rivals]:
            return f"may not be in memory together with {_names(against)}, which is pinned"
        return None

    def _make_room(self, claim: Claim, rivals: list[Resident]) -> None:
        """Chooses who gives way to the claim: nobody while others still start, and can give way only later."""
        needed = self._reserved + claim.need
        victims = [other for other in self._staying() if other in rivals]
        stay = [other for other in self._staying() if other not in rivals]
        chosen: list[Resident] = []
        for other in self._least_worth(stay):
            if self._fits(stay, needed):
                break
            if not other.pinned and other.state in ("ready", "draining"):
                stay.remove(other)
                chosen.append(other)
        if not self._fits(stay, needed):
            return
        for other in reversed(chosen):
            # A large engine that was chosen later can make an earlier choice needless.
            if self._fits([*stay, other], needed):
                stay.append(other)
            else:
                victims.append(other)
        for other in victims:
            if (left := other.stay_left(self._now)) > 0:
                self._recheck(self._now + left)
            elif other.state in ("ready", "draining"):
                self.drains.add(other.key)

    def _staying(self) -> list[Resident]:
        return [other for other in self._residents if other.state != "stopping" and other.key not in self.drains]

    def _least_worth(self, residents: Iterable[Resident]) -> list[Resident]:
        return sorted(residents, key=lambda other: other.worth(self._now))

    def _excluded(self, one: str | None, other: str | None) -> bool:
        if one is None or other is None:
            return False
        return other in self._excludes.get(one, ()) or one in self._excludes.get(other, ())

    def _fits(self, residents: list[Resident], more: Footprint) -> bool:
        """Without a strict budget, one engine alone always fits: its estimated size may be wrong."""
        return self._budget.holds(_together(residents) + more) or (not residents and not self._budget.strict)

    def _recheck(self, at: float) -> None:
        self.recheck_at = at if self.recheck_at is None else min(self.recheck_at, at)


def _together(residents: Iterable[Resident]) -> Footprint:
    return reduce(add, (resident.held for resident in residents), Footprint())


def _names(residents: Iterable[Resident]) -> str:
    return ", ".join(resident.name for resident in residents)


def _mb(size: Footprint | Budget) -> str:
    gpu = f" and {size.gpu // MB} MB of GPU memory" if size.gpu else ""
    return f"{-(-size.ram // MB)} MB{gpu}"

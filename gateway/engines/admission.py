"""Which engines may be in memory: admission by bytes, eviction, groups that exclude each other. No I/O.

Claims are granted by rank, then in order of their first request; a later one before an earlier one only if that takes
no memory from the earlier one. Loaded models stay as long as that is fair: an engine in use gives way only once it has
been ready for its stay and the claim has waited for `swap_after`, unless the claim has the higher rank. So no claim
starves, and swaps are few. An engine that only flex requests use gives way at once to any other claim; a flex claim
waits for engines that others use until it has waited for `flex_max_wait`, and from then on counts like any other. An
idle engine whose requests follow each other closely stays a little for the next one, before a flex claim gets its
memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import add

from msgspec import Struct, field
from msgspec.structs import replace

from gateway.engines.memory import MB, Budget, Footprint
from gateway.engines.states import State
from gateway.wire.chat import DEFAULT, FLEX

STAY_SECONDS = (0.25, 10.0)
"""Bounds of `stay`."""
RELOAD_SECONDS = 0.05
"""The shortest time that a reload counts as."""
CURE = "raise engines.memory_budget, or give the model a smaller context_window or parallel"


def stay(load_seconds: float | None) -> float:
    """Seconds that an engine in use stays before it gives way to others: as long as it took to load."""
    shortest, longest = STAY_SECONDS
    return min(max(load_seconds or 0.0, shortest), longest)


class Claim(Struct, frozen=True):
    """An engine wants to start. key: identifies it, hashable; two engines of one model can exist during a reload.

    rank: the best of its waiting requests. since: when the first request of that rank came.
    """

    key: object
    name: str
    need: Footprint
    group: str | None = None
    rank: int = DEFAULT
    since: float = 0.0


class Resident(Struct, frozen=True):
    """An engine that holds memory. ready_since and idle_since: by the clock of `plan`'s `now`. rank: the best of its
    requests in flight or, if it is idle, of the last one. pauses: before its last load it was idle for
    longer than its stay."""

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
    rank: int = DEFAULT
    pauses: bool = False

    def stays_until(self, claim: Claim, swap_after: float, flex_max_wait: float) -> float:
        """When the engine has to give way to the claim, by the clock of `plan`'s `now`; 0 for at once."""
        if self.state == "draining":
            return 0.0
        if not self.in_flight:
            # An agent's next request may follow: for a flex claim, it stays for as long as it would take to reload.
            follows = claim.rank > max(self.rank, DEFAULT) and not self.pauses
            return self.idle_since + stay(self.load_seconds) if follows else 0.0
        if claim.rank > max(self.rank, DEFAULT):
            return claim.since + flex_max_wait
        if self.rank == FLEX and claim.rank < FLEX:
            return 0.0
        patience = swap_after if claim.rank >= self.rank else 0.0
        return max(self.ready_since + stay(self.load_seconds), claim.since + patience)

    def worth(self, now: float) -> tuple[int, float]:
        """The engine with the least worth gives way first. Idle time counts against the cost of a reload."""
        reload = max(self.load_seconds or 0.0, RELOAD_SECONDS)
        if self.state == "draining":
            return (0, 0.0)
        if not self.in_flight:
            return (1, -(now - self.idle_since) / reload)
        return (2, reload + self.in_flight)


class Snapshot(Struct, frozen=True):
    """Everything that a plan depends on. excludes: group → groups that may not share memory. swap_after, flex_max_wait:
    seconds; see `gateway.config.Engines`."""

    budget: Budget
    claims: tuple[Claim, ...] = ()
    residents: tuple[Resident, ...] = ()
    excludes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    swap_after: float = 0.0
    flex_max_wait: float = 0.0


class Plan(Struct, frozen=True):
    """What to do now, by the engines' keys.

    grants: may start now. refusals: can never start, and why. drains: must give way, those that drain already
    included; a draining engine outside of it may stay. recheck_at: when to plan again at the latest. short: plan again
    as soon as an engine becomes idle. waits_for: waiting claim → names of the models that hold what it needs.
    """

    grants: tuple[object, ...] = ()
    refusals: Mapping[object, str] = field(default_factory=dict)
    drains: frozenset[object] = frozenset()
    recheck_at: float | None = None
    short: bool = False
    waits_for: Mapping[object, tuple[str, ...]] = field(default_factory=dict)


def plan(state: Snapshot, now: float) -> Plan:
    draft = _Draft(state, now)
    waiting = [claim for claim in draft.in_order(state.claims) if not draft.decide(claim)]
    short = bool(waiting) or not draft.shrink()
    drains = frozenset(draft.drains)
    return Plan(tuple(draft.grants), draft.refusals, drains, draft.recheck_at, short, draft.waits_for)


class _Draft:
    """A plan under construction: each decision takes earlier ones into account."""

    def __init__(self, state: Snapshot, now: float) -> None:
        self.grants: list[object] = []
        self.refusals: dict[object, str] = {}
        self.drains: set[object] = set()
        self.recheck_at: float | None = None
        self.waits_for: dict[object, tuple[str, ...]] = {}
        self._swap_after = state.swap_after
        self._flex_max_wait = state.flex_max_wait
        self._budget = state.budget
        self._excludes = state.excludes
        self._residents = list(state.residents)
        self._reserved = Footprint()
        """For older claims, to which `drains` give way."""
        self._now = now

    def in_order(self, claims: Iterable[Claim]) -> list[Claim]:
        """By rank, then the oldest first. A flex claim that has waited long enough counts as any other."""
        return sorted(map(self._aged, claims), key=lambda claim: (claim.rank, claim.since))

    def _aged(self, claim: Claim) -> Claim:
        if claim.rank < FLEX:
            return claim
        if claim.since + self._flex_max_wait <= self._now:
            return replace(claim, rank=DEFAULT)
        self._recheck(claim.since + self._flex_max_wait)
        return claim

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
        holders = rivals or [other for other in self._residents if not other.pinned]
        self.waits_for[claim.key] = tuple(other.name for other in holders)
        self._make_room(claim, rivals)
        self._reserved += claim.need
        return False

    def shrink(self) -> bool:
        """Frees memory if running engines need more than planned: idle ones give way, but never the last engine.

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
        """Why the claim could never be granted, even if all others gave way."""
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
        """Chooses the engines that give way to the claim; none while others still start and can give way only later."""
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
            # A large engine that was chosen later can make an earlier choice superfluous.
            if self._fits([*stay, other], needed):
                stay.append(other)
            else:
                victims.append(other)
        for other in victims:
            if (until := other.stays_until(claim, self._swap_after, self._flex_max_wait)) > self._now:
                self._recheck(until)
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

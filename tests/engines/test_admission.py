"""Who gets memory and who gives way: `admission.plan` as a table."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.config import Engines, Model, Residence
from gateway.engines import Engine, Residency
from gateway.engines.admission import (
    CURE,
    STAY_SECONDS,
    Claim,
    Plan,
    Resident,
    Snapshot,
    plan,
)
from gateway.engines.memory import MB, Budget, Footprint
from gateway.wire.chat import DEFAULT, FLEX, PRIORITY
from tests.patience import PATIENCE

NOW = 1000.0


def ram(size: int, gpu: int = 0) -> Footprint:
    return Footprint(size * MB, gpu * MB)


def claim(name: str, size: int = 60, **more: Any) -> Claim:
    return Claim(name, name, ram(size, more.pop("gpu", 0)), **more)


def idle(name: str, size: int = 60, *, seconds: float = 10.0, gpu: int = 0, **more: Any) -> Resident:
    fields: dict[str, Any] = {"state": "ready", "ready_since": NOW - 100, "load_seconds": 1.0, **more}
    return Resident(key=name, name=name, held=ram(size, gpu), idle_since=NOW - seconds, **fields)


def busy(name: str, size: int = 60, *, ready: float = 100.0, answers: int = 1, **more: Any) -> Resident:
    return idle(name, size, in_flight=answers, ready_since=NOW - ready, **more)


STRICT = Budget(100 * MB, strict=True)


@dataclass(frozen=True)
class Case:
    name: str
    claims: tuple[Claim, ...] = ()
    residents: tuple[Resident, ...] = ()
    grants: tuple[object, ...] = ()
    drains: frozenset[object] = frozenset()
    refusals: Mapping[object, str] = field(default_factory=dict)
    recheck_at: float | None = None
    short: bool = False
    budget: Budget = STRICT
    excludes: Mapping[str, frozenset[str]] = field(default_factory=dict)


LARGE = {"large": frozenset({"large"})}
PAIR = {"one": frozenset({"other"})}
GPU = Budget(100 * MB, 100 * MB, strict=True)
GUESSED = Budget(100 * MB)

CASES = [
    Case("nothing to do"),
    Case("room for it", (claim("a"),), grants=("a",)),
    Case("room for both", (claim("a", 50), claim("b", 50)), grants=("a", "b")),
    Case("room for one: the other waits while it starts", (claim("a"), claim("b")), grants=("a",)),
    Case("the idle one gives way", (claim("a"),), (idle("b"),), drains=frozenset("b")),
    Case("a draining one goes on draining", (claim("a"),), (idle("b", state="draining"),), drains=frozenset("b")),
    Case("a draining one that nobody waits for may stay", (), (idle("b", state="draining"),)),
    Case("one that stops already is waited for", (claim("a"),), (idle("b", state="stopping"),)),
    Case("one that starts can't give way yet", (claim("a"),), (idle("b", state="starting"),)),
    # Who goes
    Case(
        "idle before busy",
        (claim("a"),),
        (busy("b", 50), idle("c", 50)),
        drains=frozenset("c"),
        budget=Budget(110 * MB, strict=True),
    ),
    Case(
        "the longest idle",
        (claim("a", 40),),
        (idle("b", 30, seconds=5), idle("c", 40, seconds=50)),
        drains=frozenset("c"),
    ),
    Case(
        "the cheap reload goes, though idle for less",
        (claim("a", 40),),
        (idle("b", 40, seconds=50, load_seconds=100), idle("c", 40, seconds=5, load_seconds=1)),
        drains=frozenset("c"),
    ),
    Case(
        "a quick reload counts for something",
        (claim("a", 40),),
        (idle("b", 40, seconds=50, load_seconds=0.0), idle("c", 40, seconds=60, load_seconds=0.05)),
        drains=frozenset("c"),
    ),
    Case(
        "the one with fewer answers",
        (claim("a", 40),),
        (busy("b", 40, answers=3), busy("c", 40)),
        drains=frozenset("c"),
    ),
    Case("no more than needed", (claim("a", 50),), (idle("b", 30, seconds=90), idle("c", 60)), drains=frozenset("c")),
    Case("both if one isn't enough", (claim("a", 90),), (idle("b", 40), idle("c", 40)), drains=frozenset("bc")),
    Case("never a pinned one", (claim("a", 40),), (idle("b", 40, pinned=True), busy("c", 40)), drains=frozenset("c")),
    # When
    Case(
        "one in use has its stay: as long as it took to load",
        (claim("a"),),
        (busy("b", ready=0.4, load_seconds=1.0),),
        recheck_at=NOW + 0.6,
    ),
    Case(
        "the stay has a least",
        (claim("a"),),
        (busy("b", ready=0.0, load_seconds=0.0),),
        recheck_at=NOW + STAY_SECONDS[0],
    ),
    Case(
        "the stay has a most",
        (claim("a"),),
        (busy("b", ready=0.0, load_seconds=99.0),),
        recheck_at=NOW + STAY_SECONDS[1],
    ),
    Case("an idle one has no stay", (claim("a"),), (idle("b", ready_since=NOW),), drains=frozenset("b")),
    Case(
        "the shortest stay counts",
        (claim("a", 90),),
        (busy("b", 40, ready=0.5), busy("c", 40, ready=0.25)),
        recheck_at=NOW + 0.5,
    ),
    # Order
    Case(
        "a small young claim takes what an old one can't use",
        (claim("a", 60), claim("b", 10)),
        (idle("c", 30, state="starting"),),
        grants=("a", "b"),
    ),
    Case(
        "a young claim takes nothing from an older one",
        (claim("a", 60), claim("b", 10)),
        (idle("c", 60),),
        drains=frozenset("c"),
        budget=Budget(65 * MB, strict=True),
    ),
    Case(
        "a young claim that leaves the older one its place",
        (claim("a", 60), claim("b", 10)),
        (busy("c", 30, ready=0.0),),
        grants=("a", "b"),
    ),
    # Groups
    Case(
        "a rival goes, though there is room",
        (claim("a", 10, group="large"),),
        (idle("b", 10, group="large"), idle("c", 10)),
        drains=frozenset("b"),
        excludes=LARGE,
    ),
    Case(
        "groups exclude each other both ways",
        (claim("a", 10, group="other"),),
        (idle("b", 10, group="one"),),
        drains=frozenset("b"),
        excludes=PAIR,
    ),
    Case(
        "of two rivals one starts",
        (claim("a", 10, group="large"), claim("b", 10, group="large")),
        grants=("a",),
        excludes=LARGE,
    ),
    Case(
        "another group",
        (claim("a", 10, group="one"),),
        (idle("b", 10, group="one"),),
        grants=("a",),
        excludes=PAIR,
    ),
    # Never
    Case(
        "too large for the budget",
        (claim("a", 101),),
        (idle("b"),),
        refusals={"a": f"model 'a' needs 101 MB, which is more than engines may hold (100 MB); {CURE}"},
    ),
    Case("too large for a guessed budget: tried alone", (claim("a", 101),), grants=("a",), budget=GUESSED),
    Case(
        "too large for a guessed budget: the others go first",
        (claim("a", 101),),
        (idle("b", 1),),
        drains=frozenset("b"),
        budget=GUESSED,
    ),
    Case(
        "beside a pinned one",
        (claim("a"),),
        (idle("b", pinned=True),),
        refusals={"a": f"model 'a' needs 60 MB; b keep 60 MB of 100 MB; {CURE}"},
    ),
    Case(
        "a pinned rival",
        (claim("a", 10, group="large"),),
        (idle("b", 10, group="large", pinned=True),),
        refusals={"a": f"model 'a' may not be in memory together with b, which is pinned; {CURE}"},
        excludes=LARGE,
    ),
    Case(
        "a refusal is in nobody's way",
        (claim("a", 101), claim("b", 60)),
        grants=("b",),
        refusals={"a": f"model 'a' needs 101 MB, which is more than engines may hold (100 MB); {CURE}"},
    ),
    # GPUs
    Case(
        "the GPU counts apart", (claim("a", 10, gpu=60),), (idle("b", 10, gpu=60),), drains=frozenset("b"), budget=GPU
    ),
    Case(
        "too large for the GPU",
        (claim("a", 10, gpu=101),),
        budget=GPU,
        refusals={
            "a": "model 'a' needs 10 MB and 101 MB of GPU memory, which is more than engines may hold"
            f" (100 MB and 100 MB of GPU memory); {CURE}"
        },
    ),
    # Engines that need more than planned
    Case("an idle one gives way", (), (idle("b"), busy("c")), drains=frozenset("b")),
    Case("the longest idle gives way", (), (idle("b", seconds=1), idle("c", seconds=9)), drains=frozenset("c")),
    Case("no answer is cut short", (), (busy("b"), busy("c")), short=True),
    Case("a pinned one stays", (), (idle("b", pinned=True), busy("c")), short=True),
    Case("the last one stays", (), (idle("b", 101),)),
    Case(
        "only as many as needed", (), (idle("b", 40, seconds=90), idle("c", 40), idle("d", 40)), drains=frozenset("b")
    ),
    Case(
        "not while others wait", (claim("a", 50),), (idle("b", 60, state="starting"), idle("c", 50, state="starting"))
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_plan(case: Case) -> None:
    made = plan(Snapshot(case.budget, case.claims, case.residents, case.excludes), NOW)
    recheck = None if case.recheck_at is None else pytest.approx(case.recheck_at)
    waits = len(case.claims) > len(case.grants) + len(case.refusals)
    short = waits or case.short
    assert made == Plan(case.grants, dict(case.refusals), case.drains, made.recheck_at, short, made.waits_for)
    assert made.recheck_at == recheck
    assert set(made.waits_for) == {each.key for each in case.claims} - {*case.grants, *case.refusals}


SIZES = st.integers(1, 120)
STATES = st.sampled_from(["starting", "ready", "draining", "stopping"])
RESIDENTS = st.lists(
    st.builds(
        lambda size, state, answers, pinned, ready: (size, state, answers, pinned, ready),
        SIZES, STATES, st.integers(0, 2), st.booleans(), st.floats(0, 20),
    ),
    max_size=4,
)  # fmt: skip


@given(claims=st.lists(SIZES, max_size=4), residents=RESIDENTS, strict=st.booleans())
def test_laws_of_every_plan(
    claims: list[int], residents: list[tuple[int, Any, int, bool, float]], strict: bool
) -> None:
    here = tuple(
        idle(f"r{at}", size, state=state, in_flight=answers, pinned=pinned, ready_since=NOW - ready)
        for at, (size, state, answers, pinned, ready) in enumerate(residents)
    )
    wanted = tuple(claim(f"c{at}", size) for at, size in enumerate(claims))
    made = plan(Snapshot(Budget(100 * MB, strict=strict), wanted, here), NOW)
    by_key = {resident.key: resident for resident in here}
    granted = [each for each in wanted if each.key in made.grants]
    held = sum(each.held.ram for each in here)
    if granted and (strict or len(granted) + len(here) > 1):
        assert held + sum(each.need.ram for each in granted) <= 100 * MB
    assert not set(made.grants) & set(made.refusals)
    for key in made.drains:
        gone = by_key[key]
        assert not gone.pinned
        assert gone.state in ("ready", "draining")
        until = [gone.stays_until(each, 0.0, 0.0) for each in wanted]
        assert not wanted or min(until) <= NOW
    if not wanted:
        assert not any(by_key[key].in_flight for key in made.drains)
    assert made.recheck_at is None or made.recheck_at > NOW


# Turns: who goes first, and who gives way when

SWAP, FLEX_WAIT = 10.0, 600.0


def waiting(name: str, rank: int = DEFAULT, *, since: float = 1.0, size: int = 60) -> Claim:
    """since: seconds ago."""
    return claim(name, size, rank=rank, since=NOW - since)


@dataclass(frozen=True)
class Turn:
    name: str
    claims: tuple[Claim, ...]
    residents: tuple[Resident, ...] = ()
    grants: tuple[object, ...] = ()
    drains: frozenset[object] = frozenset()
    recheck_at: float | None = None
    """Seconds from now."""


TURNS = [
    # A loaded model in use goes first, up to the bound
    Turn("the loaded one goes on", (waiting("a", since=4),), (busy("b"),), recheck_at=SWAP - 4),
    Turn("after its time it gives way", (waiting("a", since=10),), (busy("b"),), drains=frozenset("b")),
    Turn("an idle one gives way at once", (waiting("a", since=0),), (idle("b"),), drains=frozenset("b")),
    Turn(
        "one that was just loaded has its stay beyond the bound",
        (waiting("a", since=30),),
        (busy("b", ready=1, load_seconds=8.0),),
        recheck_at=7,
    ),
    Turn("what drains goes on draining", (waiting("a"),), (busy("b", state="draining"),), drains=frozenset("b")),
    # Ranks
    Turn("priority doesn't wait for the bound", (waiting("a", PRIORITY),), (busy("b"),), drains=frozenset("b")),
    Turn(
        "but for the stay", (waiting("a", PRIORITY),), (busy("b", ready=1, load_seconds=3.0),), recheck_at=2
    ),
    Turn(
        "priority before default, default before flex, whoever came first",
        (waiting("f", FLEX, since=90), waiting("d", since=60), waiting("p", PRIORITY, since=1)),
        grants=("p",),
        recheck_at=FLEX_WAIT - 90,
    ),
    Turn("of one rank, who came first", (waiting("a", since=1), waiting("b", since=2)), grants=("b",)),
    Turn("flex in use gives way at once", (waiting("a", since=0),), (busy("b", rank=FLEX),), drains=frozenset("b")),
    Turn(
        "flex among flex as default among default",
        (waiting("a", FLEX, since=4),),
        (busy("b", rank=FLEX),),
        recheck_at=SWAP - 4,
    ),
    Turn("flex waits for others in use", (waiting("a", FLEX, since=60),), (busy("b"),), recheck_at=FLEX_WAIT - 60),
    Turn(
        "for one that others just used, it waits as long as a reload takes",
        (waiting("a", FLEX, since=60),),
        (idle("b", seconds=1.0, load_seconds=3.0),),
        recheck_at=2,
    ),
    Turn("then it goes", (waiting("a", FLEX),), (idle("b", seconds=3.0, load_seconds=3.0),), drains=frozenset("b"),
         recheck_at=FLEX_WAIT - 1),
    Turn(
        "but for none whose requests are further apart than that",
        (waiting("a", FLEX, since=60),),
        (idle("b", seconds=0.0, load_seconds=3.0, pauses=True),),
        drains=frozenset("b"),
        recheck_at=FLEX_WAIT - 60,
    ),
    Turn(
        "in use, it keeps flex waiting all the same",
        (waiting("a", FLEX, since=60),),
        (busy("b", pauses=True),),
        recheck_at=FLEX_WAIT - 60,
    ),
    Turn(
        "an idle one that flex used gives flex way at once",
        (waiting("a", FLEX, since=60),),
        (idle("b", seconds=0.0, rank=FLEX, load_seconds=3.0),),
        drains=frozenset("b"),
        recheck_at=FLEX_WAIT - 60,
    ),
    Turn("flex that waited long enough goes as any other", (waiting("a", FLEX, since=600),), (busy("b"),),
         drains=frozenset("b")),
    Turn(
        "and in its turn",
        (waiting("d", since=5), waiting("f", FLEX, since=700)),
        grants=("f",),
    ),
]  # fmt: skip


@pytest.mark.parametrize("turn", TURNS, ids=lambda turn: turn.name)
def test_whose_turn_it_is(turn: Turn) -> None:
    made = plan(Snapshot(STRICT, turn.claims, turn.residents, {}, SWAP, FLEX_WAIT), NOW)
    recheck = None if turn.recheck_at is None else NOW + turn.recheck_at
    assert (made.grants, made.drains) == (turn.grants, turn.drains)
    assert made.recheck_at == (recheck if recheck is None else pytest.approx(recheck))


def test_it_says_who_holds_what_a_claim_waits_for() -> None:
    large = {"large": frozenset({"large"})}
    state = Snapshot(
        STRICT, (waiting("a", size=1), claim("c", 95)), (busy("b", 10, group="large"), busy("d", 10)), large
    )
    made = plan(replace(state, claims=(replace(state.claims[0], group="large"), state.claims[1])), NOW)
    assert made.waits_for == {"a": ("b",), "c": ("b", "d")}


RANKS = st.sampled_from([PRIORITY, DEFAULT, FLEX])


@given(
    claims=st.lists(st.tuples(RANKS, st.floats(0, 700)), min_size=1, max_size=4),
    residents=st.lists(st.tuples(RANKS, st.integers(0, 2), st.floats(0, 20), st.floats(0, 20)), max_size=3),
    swap_after=st.floats(0, 30),
)
def test_nobody_waits_for_ever(
    claims: list[tuple[int, float]], residents: list[tuple[int, int, float, float]], swap_after: float
) -> None:
    """A claim that waits while nobody drains, starts or stops for it is looked at again within its bounds."""
    wanted = tuple(waiting(f"c{at}", rank, since=since) for at, (rank, since) in enumerate(claims))
    here = tuple(
        busy(f"r{at}", 30, answers=answers, rank=rank, ready=ready, load_seconds=load)
        for at, (rank, answers, ready, load) in enumerate(residents)
    )
    made = plan(Snapshot(STRICT, wanted, here, {}, swap_after, FLEX_WAIT), NOW)
    if not made.grants and not made.drains:
        assert made.recheck_at is not None
        assert NOW < made.recheck_at <= NOW + max(swap_after, FLEX_WAIT, STAY_SECONDS[1])
    best = min(each.rank if each.rank < FLEX or each.since > NOW - FLEX_WAIT else DEFAULT for each in wanted)
    for each in wanted:
        if each.key in made.grants:
            assert each.rank == best or len(made.grants) > 1 or (each.rank, best) == (FLEX, DEFAULT)


@given(st.lists(st.floats(0, 5), min_size=3, max_size=40), st.floats(0, 20), st.floats(0.1, 5.0))
def test_two_models_under_load_swap_no_oftener_than_the_bound_allows(
    gaps: list[float], swap_after: float, load: float
) -> None:
    """Requests for two models that exclude each other come all the time, and no engine is ever idle."""
    now, loaded, ready, swaps = NOW, "a", NOW, [NOW]
    claimed: float | None = None
    for gap in gaps:
        now += gap
        claimed = now if claimed is None else claimed
        other = "b" if loaded == "a" else "a"
        resident = Resident(loaded, loaded, "ready", ram(60), in_flight=3, ready_since=ready, load_seconds=load)
        made = plan(Snapshot(STRICT, (Claim(other, other, ram(60), since=claimed),), (resident,), {}, swap_after), now)
        if made.drains:
            assert now - claimed >= swap_after - 1e-6
            loaded, ready, claimed = other, now, None
            swaps.append(now)
    for before, after in itertools.pairwise(swaps):
        assert after - before >= min(swap_after, STAY_SECONDS[1]) - 1e-6
        assert after - before >= min(max(load, STAY_SECONDS[0]), STAY_SECONDS[1]) - 1e-6


# The actor around it


def engine(name: str, residency: Residency, size: int) -> Engine:
    model = Model(
        name=name, runtime="llama.cpp", path=Path("/no/such.gguf"), residence=Residence(memory=size * MB)
    )  # fmt: skip
    return Engine(model, residency=residency)


async def test_claims_of_the_same_moment_are_two() -> None:
    """The second gives up: the first keeps its place."""
    residency = Residency(Engines(memory_budget=100 * MB), budget=lambda: Budget(100 * MB))
    holder, first, second = (engine(name, residency, 60) for name in ("holder", "first", "second"))
    await residency.admit(holder, 1.0)
    waiting = [asyncio.create_task(residency.admit(each, 2.0)) for each in (first, second)]
    while len(residency.claims) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert [each.engine for each in residency.claims] == [first, second]
    waiting[1].cancel()
    await asyncio.wait({waiting[1]})
    assert [each.engine for each in residency.claims] == [first]
    residency.freed(holder)
    residency.schedule()
    async with asyncio.timeout(PATIENCE):
        await waiting[0]
    assert (residency.residents, first.state, second.state) == ([first], "starting", "stopped")
    assert not residency.claims

"""Who gets memory and who gives way: `admission.plan` as a table."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Engines, Model, Residence
from gateway.engines import Engine, Residency
from gateway.engines.admission import CURE, STAY_SECONDS, Claim, Plan, Resident, Snapshot, plan
from gateway.engines.memory import MB, Budget, Footprint
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
    assert made == Plan(case.grants, dict(case.refusals), case.drains, made.recheck_at, waits or case.short)
    assert made.recheck_at == recheck


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
        assert not gone.stay_left(NOW)
    if not wanted:
        assert not any(by_key[key].in_flight for key in made.drains)
    assert made.recheck_at is None or made.recheck_at > NOW


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

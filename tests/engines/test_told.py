"""What an engine says of itself while it starts and waits: without a process, its times and counts set by hand."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from gateway.config import Model, Runtime
from gateway.engines import Engine
from gateway.engines.failures import Failures
from gateway.engines.memory import Footprint, ProcessUsage
from gateway.engines.snapshot import loaded
from gateway.errors import ProviderModelNotLoaded
from gateway.wire.chat import rank_of

MODEL = Model(name="m", runtime="llama.cpp", engine=Runtime(parallel=2))
FLEX, DEFAULT, PRIORITY = rank_of("flex"), rank_of("default"), rank_of("priority")


@pytest.mark.parametrize(
    ("held", "resident", "part"),
    [
        (Footprint(100, 0), 25, 0.25),
        (Footprint(100, 100), 50, 0.25),
        (Footprint(0, 100), 50, 0.5),
        (Footprint(100), 100, 0.99),
        (Footprint(100), 300, 0.99),
        (Footprint(), 25, None),
        (Footprint(100), None, None),
    ],
)
async def test_how_much_of_a_starting_engine_is_loaded(
    held: Footprint, resident: int | None, part: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(MODEL)
    engine.held = held
    monkeypatch.setattr(engine.usage, "of", lambda pid: None if resident is None else ProcessUsage(resident, 0, 0, 0.0))
    assert loaded(engine) is None  # it is stopped
    engine.lifecycle.to("admit")
    assert loaded(engine) == part
    engine.lifecycle.to("came")
    assert loaded(engine) is None


async def test_the_rank_of_an_engine_is_the_best_of_its_requests() -> None:
    engine = Engine(MODEL)
    for ranks, rank in (([FLEX], FLEX), ([FLEX, FLEX], FLEX), ([FLEX, DEFAULT], DEFAULT), ([PRIORITY], DEFAULT)):
        for each in ranks:
            engine.requests.enter(each)
        assert engine.rank == rank
        assert (engine.in_flight, engine.requests.places.flex) == (len(ranks), ranks.count(FLEX))
        for each in ranks:
            engine.requests.leave(each)
        assert (engine.in_flight, engine.requests.places.flex) == (0, 0)


@pytest.mark.parametrize(("seconds", "waits"), [(-1.0, False), (0.5, True), (4.9, True)])
async def test_a_short_back_off_is_waited_for(seconds: float, waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    failures = Failures()
    failures.not_before = 100.0 + seconds
    await failures.wait(ProviderModelNotLoaded("broken"))
    assert slept == ([pytest.approx(seconds)] if waits else [])


async def test_a_long_back_off_is_told_with_the_failure_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    details: dict[str, Any] = {"why": "x"}
    last = ProviderModelNotLoaded("broken", code="c", status=503, details=details)
    failures = Failures()
    failures.not_before = 105.5
    with pytest.raises(ProviderModelNotLoaded, match="broken") as failed:
        await failures.wait(last)
    assert failed.value.retry_after == 5.5
    assert (failed.value.code, failed.value.status, failed.value.details) == ("c", 503, details)
    assert failed.value is not last

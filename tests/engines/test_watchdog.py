"""Engines that live and no longer work: the judgement on its own, then real ones that are stopped in the middle."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.config import Engines, Model, Residence
from gateway.core import Run
from gateway.engines import Engine, engine, memory
from gateway.engines.recipe import Machine
from gateway.engines.watchdog import Signs, Watchdog
from gateway.errors import GatewayError, ProviderUnavailable
from tests.engines.conftest import stand_still
from tests.engines.test_residency import asked, engine_of, gateway_of, rest, whole

STALL, PATIENCE = 10.0, 100.0


@dataclass(frozen=True)
class Case:
    """Signs of each second from 0 on: what was heard last, told, and the processor time used so far."""

    name: str
    signs: Callable[[int], Signs]
    stuck_at: int | None
    why: str = ""


CASES = [
    Case("tokens come", lambda now: Signs(heard=now), None),
    Case("it tells of progress", lambda now: Signs(heard=0, told=("prompt", now // 4)), None),
    Case(
        "tells the same, computes", lambda now: Signs(heard=0, told=("x",), cpu=now), 100, "made no progress for 100 s"
    ),
    Case("computes and tells nothing", lambda now: Signs(heard=0, cpu=now), 100, "made no progress for 100 s"),
    Case("does nothing", lambda now: Signs(heard=0, told=("x",), cpu=7), 10, "did nothing for 10 s"),
    Case("nothing is known of it", lambda now: Signs(heard=0), 10, "did nothing for 10 s"),
    Case("breathes, no more", lambda now: Signs(heard=0, cpu=now / 100), 10, "did nothing for 10 s"),
    Case("stops after a while", lambda now: Signs(heard=min(now, 50)), 60, "did nothing for 10 s"),
    Case("computes for a while", lambda now: Signs(heard=0, cpu=min(now, 40)), 50, "did nothing for 50 s"),
    Case("a token each 9 s", lambda now: Signs(heard=now - now % 9), None),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_when_an_engine_counts_as_stuck(case: Case) -> None:
    watchdog = Watchdog(STALL, PATIENCE)
    for now in range(200):
        why = watchdog.stuck(now, case.signs(now))
        if why is not None:
            assert (now, why.startswith(case.why)) == (case.stuck_at, True), why
            return
    assert case.stuck_at is None


def test_a_rest_begins_anew() -> None:
    watchdog = Watchdog(STALL, PATIENCE)
    for _ in range(3):
        assert watchdog.stuck(0, Signs(heard=0)) is None
        assert watchdog.stuck(9, Signs(heard=0)) is None
        assert watchdog.silent(9) == 9
        watchdog.rest()
        # What was heard before the rest is no sign of anything.
        assert watchdog.stuck(100, Signs(heard=0)) is None
        assert watchdog.silent(100) == 0
        watchdog.rest()


# Real engines

STALLED = 1.0
QUICK = Residence(stall_timeout_seconds=STALLED)


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks ten times a second, so that a second is long enough for a test."""
    monkeypatch.setattr(engine, "TICK_SECONDS", 0.1)


async def frozen(engine: Engine) -> int:
    pid = engine.pid
    assert pid is not None
    stand_still(pid)
    return pid


LONG = {"max_tokens": 480, "ignore_eos": True}


async def begun(engine: Engine) -> None:
    """The engine works on an answer."""
    backend = engine.backend
    assert backend is not None
    while not any(step[1] for step in await backend.progress()):  # type: ignore[union-attr]  # noqa: ASYNC110
        await asyncio.sleep(0)


@pytest.mark.usefixtures("ticks")
@pytest.mark.parametrize("which", ["xllamacpp", "on_path"])
async def test_a_stuck_engine_is_ended_and_what_nobody_has_seen_is_asked_again(
    model: Model, which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    machine: Callable[[], Machine] = request.getfixturevalue(which)
    async with gateway_of(model, {"one": QUICK}, Engines(), machine, tmp_path) as (gateway, _):
        one = engine_of(gateway, "one")
        await whole(gateway, "one")
        seen = await gateway.chat(asked("one", stream=True, logprobs=True, top_logprobs=600, **LONG))
        with seen:
            assert await seen.payloads()
            unseen = asyncio.create_task(whole(gateway, "one", **LONG))
            while one.in_flight < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await begun(one)
            pid = await frozen(one)
            failed = asyncio.create_task(end_of(seen))
            assert b"chat.completion" in await unseen
            error = await failed
        assert isinstance(error, ProviderUnavailable)
        assert "went away in the middle of its answer" in error.message
        assert one.pid not in (None, pid)
        assert one.crashes == 1
        assert (one.state, one.in_flight) == ("ready", 0)


async def end_of(run: Run) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        await rest(run)
    return caught.value


@pytest.mark.usefixtures("ticks")
async def test_what_it_failed_of_is_told(model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path) -> None:
    async with gateway_of(model, {"one": QUICK}, Engines(), xllamacpp, tmp_path) as (gateway, _):
        one = engine_of(gateway, "one")
        await whole(gateway, "one")
        told: list[str] = []
        one.on_change(lambda engine: told.append(str(engine.failure)))
        asking = asyncio.create_task(whole(gateway, "one", **LONG))
        while not one.in_flight:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await begun(one)
        await frozen(one)
        assert b"chat.completion" in await asking
        assert "did nothing for" in told[0]
        assert "though it had answers to give, and was ended" in told[0]


@pytest.mark.usefixtures("ticks")
async def test_a_client_that_does_not_read_is_no_stuck_engine(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    async with gateway_of(model, {"one": QUICK}, Engines(), xllamacpp, tmp_path) as (gateway, _):
        one = engine_of(gateway, "one")
        with await gateway.chat(
            asked("one", stream=True, logprobs=True, top_logprobs=600, **{**LONG, "max_tokens": 200})
        ) as run:
            assert await run.payloads()
            pid = one.pid
            await asyncio.sleep(2 * STALLED)
            assert (one.pid, one.crashes) == (pid, 0)
            assert b'"length"' in (await rest(run))[-1]


@pytest.mark.usefixtures("ticks")
async def test_a_slow_engine_is_no_stuck_engine(model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path) -> None:
    """One that gets a part of the time: each answer takes longer than it may be silent."""
    async with gateway_of(model, {"one": QUICK}, Engines(), xllamacpp, tmp_path) as (gateway, _):
        one = engine_of(gateway, "one")
        await whole(gateway, "one")
        pid = one.pid
        assert pid is not None

        async def slow_down() -> None:
            try:
                while True:
                    os.kill(pid, signal.SIGSTOP)
                    await asyncio.sleep(0.1)
                    os.kill(pid, signal.SIGCONT)
                    # However little of the processor the machine has for it.
                    used = cpu(pid)
                    while cpu(pid) - used < 0.02:  # noqa: ASYNC110
                        await asyncio.sleep(0.002)
            finally:
                os.kill(pid, signal.SIGCONT)

        slow = asyncio.create_task(slow_down())
        begin = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - begin < 2 * STALLED:
            await whole(gateway, "one", **LONG)
        slow.cancel()
        await asyncio.wait({slow})
        assert (one.pid, one.crashes) == (pid, 0)


def cpu(pid: int) -> float:
    """Seconds of processor time that it has used."""
    usage = memory.usage(pid)
    assert usage is not None
    assert usage.cpu is not None
    return usage.cpu


@pytest.mark.usefixtures("ticks")
async def test_an_engine_that_stood_still_with_the_gateway_is_no_stuck_engine(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    """As on a machine that was paused."""
    async with gateway_of(model, {"one": QUICK}, Engines(), xllamacpp, tmp_path) as (gateway, _):
        one = engine_of(gateway, "one")
        await whole(gateway, "one")
        asking = asyncio.create_task(whole(gateway, "one", **LONG))
        while not one.in_flight:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await begun(one)
        pid = await frozen(one)
        await asyncio.sleep(STALLED / 5)  # so that it was looked at
        time.sleep(2 * STALLED)  # noqa: ASYNC251 - the whole process
        os.kill(pid, signal.SIGCONT)
        assert b"chat.completion" in await asking
        assert (one.pid, one.crashes) == (pid, 0)

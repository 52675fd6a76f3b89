"""Stuck engines: the watchdog alone, then real engines that are stopped in the middle."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.llamacpp import LlamaCppBackend
from gateway.config import Engines, Model, Residence
from gateway.core import Gateway, Run
from gateway.engines import Engine, memory, supervisor
from gateway.engines.recipe import Machine
from gateway.engines.watchdog import Signs, Watchdog
from gateway.errors import GatewayError, ProviderUnavailable
from tests.engines.conftest import stand_still
from tests.patience import PATIENCE as ENOUGH
from tests.support.shared_memory import asked, engine_of, gateway_of, rest, whole

STALL, PATIENCE = 10.0, 100.0


@dataclass(frozen=True)
class Case:
    """Signs of each second from 0 on."""

    name: str
    signs: Callable[[int], Signs]
    stuck_at: int | None
    why: str = ""


CASES = [
    Case("tokens come", lambda now: Signs(heard=now), None),
    Case("reports progress", lambda now: Signs(heard=0, progress=("prompt", now // 4)), None),
    Case(
        "reports the same, computes",
        lambda now: Signs(heard=0, progress=("x",), cpu=now),
        100,
        "made no progress for 100 s",
    ),
    Case("computes, reports nothing", lambda now: Signs(heard=0, cpu=now), 100, "made no progress for 100 s"),
    Case("does nothing", lambda now: Signs(heard=0, progress=("x",), cpu=7), 10, "did nothing for 10 s"),
    Case("nothing is known", lambda now: Signs(heard=0), 10, "did nothing for 10 s"),
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
    monkeypatch.setattr(supervisor, "TICK_SECONDS", 0.1)


async def frozen(engine: Engine) -> int:
    pid = engine.pid
    assert pid is not None
    stand_still(pid)
    return pid


LONG = {"max_tokens": 480, "ignore_eos": True}


async def under_way(gateway: Gateway, name: str, **more: Any) -> asyncio.Task[bytes]:
    """A whole answer that the engine works on; asks once more if one ends before it is seen."""
    engine = engine_of(gateway, name)
    others = engine.in_flight
    async with asyncio.timeout(ENOUGH):
        while True:
            asking = asyncio.create_task(whole(gateway, name, **more))
            while not asking.done():
                if engine.in_flight > others and await busy(engine):
                    return asking
                await asyncio.sleep(0)
            await asking


async def busy(engine: Engine) -> bool:
    """Whether a slot of the engine works."""
    backend = engine.requests.backend
    assert isinstance(backend, LlamaCppBackend)
    status, body = await backend.get("/slots")
    assert status == 200
    return any(slot["is_processing"] for slot in json.loads(body))


@pytest.mark.usefixtures("ticks")
@pytest.mark.parametrize("which", ["xllamacpp", "on_path"])
async def test_a_stuck_engine_is_ended_and_unseen_answers_are_asked_again(
    model: Model, which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    machine: Callable[[], Machine] = request.getfixturevalue(which)
    async with gateway_of(model, {"one": QUICK}, Engines(), machine, tmp_path) as (gateway, _):
        one = engine_of(gateway, "one")
        await whole(gateway, "one")
        seen = await gateway.chat(asked("one", stream=True, logprobs=True, top_logprobs=600, **LONG))
        with seen:
            assert await seen.payloads()
            unseen = await under_way(gateway, "one", **LONG)
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
async def test_the_failure_names_the_reason(model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path) -> None:
    async with gateway_of(model, {"one": QUICK}, Engines(), xllamacpp, tmp_path) as (gateway, _):
        one = engine_of(gateway, "one")
        await whole(gateway, "one")
        failures: list[str] = []
        one.on_change(lambda engine: failures.append(str(engine.failure)))
        asking = await under_way(gateway, "one", **LONG)
        await frozen(one)
        assert b"chat.completion" in await asking
        assert "did nothing for" in failures[0]
        assert "though it had answers to give, and was ended" in failures[0]


@pytest.mark.usefixtures("ticks")
async def test_a_client_that_does_not_read_does_not_make_its_engine_stuck(
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
async def test_a_slow_engine_is_not_stuck(model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path) -> None:
    """It runs for a part of the time: each answer takes longer than the stall timeout."""
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
async def test_an_engine_paused_with_the_gateway_is_not_stuck(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    """As on a machine that was paused."""
    async with gateway_of(model, {"one": QUICK}, Engines(), xllamacpp, tmp_path) as (gateway, _):
        one = engine_of(gateway, "one")
        await whole(gateway, "one")
        asking = await under_way(gateway, "one", **LONG)
        pid = await frozen(one)
        await asyncio.sleep(STALLED / 5)  # so that it was looked at
        time.sleep(2 * STALLED)  # noqa: ASYNC251 - the whole process
        os.kill(pid, signal.SIGCONT)
        assert b"chat.completion" in await asking
        assert (one.pid, one.crashes) == (pid, 0)

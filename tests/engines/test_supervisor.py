"""When a supervisor ends, drains or measures its engine: an engine of signs alone, and a clock of its own."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable, Hashable
from typing import Any, cast

import pytest

from gateway.backends import Backend
from gateway.config import Model, Residence
from gateway.engines import memory, supervisor
from gateway.engines.memory import ProcessUsage
from gateway.engines.process import Process
from gateway.engines.supervisor import PROGRESS_SECONDS, Supervisor
from gateway.errors import ProviderUnavailable

STALL, PATIENCE = 20.0, 100.0


class Scene(Backend):
    """An engine, its backend and its process. Each tick lasts a second of `now`; the process ends after `ticks`."""

    def __init__(self, *, ticks: int = 300, in_flight: int = 0, request_timeout: float = PATIENCE, **more: Any) -> None:
        residence = Residence(stall_timeout_seconds=STALL, **more)
        super().__init__(
            Model(name="m", runtime="llama.cpp", residence=residence, request_timeout=request_timeout), None
        )
        self.now = 0.0
        self.current_backend: Backend | None = self
        self.in_flight = in_flight
        self.idle_since = 0.0
        self.keep_alive: float | None = None
        self.pid: int | None = os.getpid()
        self.killed_at: float | None = None
        self.drained: list[float] = []
        self.measured: list[tuple[float, bool]] = []
        self.asked: list[float] = []
        self.signs: dict[str, Callable[[float], Any]] = {"heard": lambda now: 0.0}
        """What `heard`, `progress` and the processor time say at a moment."""
        self.pauses: dict[float, float] = {}
        """Seconds that a tick takes in place of one, by when it begins."""
        self._ticks = ticks

    # As an engine
    def drain(self) -> None:
        self.drained.append(self.now)

    async def measure(self, *, with_gpu: bool = True) -> None:
        self.measured.append((self.now, with_gpu))

    # As a backend
    def heard(self) -> float | None:
        found: float | None = self.signs["heard"](self.now)
        return found

    async def progress(self) -> Hashable | None:
        self.asked.append(self.now)
        found: Hashable | None = self.signs["progress"](self.now) if "progress" in self.signs else None
        return found

    # As a process
    async def wait(self, timeout: float) -> bool:
        assert timeout == supervisor.TICK_SECONDS
        self.now += self.pauses.get(self.now, timeout)
        self._ticks -= 1
        return self.killed_at is not None or self._ticks == 0

    def kill(self) -> None:
        self.killed_at = self.now

    def usage(self, pid: int) -> ProcessUsage | None:
        assert pid == self.pid
        return ProcessUsage(1, 1, 1, self.signs["cpu"](self.now)) if "cpu" in self.signs else None


async def watched(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Why it was ended; None if it wasn't."""
    found = Supervisor(scene, cast(Process, scene))
    with monkeypatch.context() as patch:
        patch.setattr(memory, "usage", scene.usage)
        patch.setattr(time, "monotonic", lambda: scene.now)
        patch.setattr(asyncio.get_running_loop(), "time", lambda: scene.now)
        await found.run()
    assert (found.stuck is None) == (scene.killed_at is None)
    return found.stuck


@pytest.mark.parametrize(
    ("residence", "in_flight", "first"),
    [
        pytest.param({"idle_ttl_seconds": 10}, 0, 10, id="after its time"),
        pytest.param({"idle_ttl_seconds": 0}, 0, 0, id="at once"),
        pytest.param({}, 0, None, id="without a time it stays"),
        pytest.param({"idle_ttl_seconds": 10, "pinned": True}, 0, None, id="a pinned one stays"),
        pytest.param({"idle_ttl_seconds": 10}, 1, None, id="one in use stays"),
    ],
)
async def test_an_idle_engine_is_drained(
    residence: dict[str, Any], in_flight: int, first: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(ticks=15, in_flight=in_flight, **residence)
    assert await watched(scene, monkeypatch) is None
    assert scene.drained[:1] == ([] if first is None else [first])


@pytest.mark.parametrize(
    ("keep_alive", "residence", "first"),
    [
        pytest.param(5.0, {"idle_ttl_seconds": 10}, 5, id="sooner"),
        pytest.param(12.0, {"idle_ttl_seconds": 10}, 12, id="later"),
        pytest.param(0.0, {}, 0, id="at once"),
        pytest.param(math.inf, {"idle_ttl_seconds": 10}, None, id="never"),
        pytest.param(0.0, {"pinned": True}, None, id="a pinned one stays"),
    ],
)
async def test_a_client_s_keep_alive_counts_more(
    keep_alive: float, residence: dict[str, Any], first: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(ticks=15, **residence)
    scene.keep_alive = keep_alive
    assert await watched(scene, monkeypatch) is None
    assert scene.drained[:1] == ([] if first is None else [first])


async def test_idleness_begins_with_the_last_request(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(ticks=30, idle_ttl_seconds=10)
    scene.idle_since = 7.0
    await watched(scene, monkeypatch)
    assert scene.drained[0] == 17.0


SILENT: dict[str, Callable[[float], Any]] = {"heard": lambda now: 0.0}


@pytest.mark.parametrize(
    ("signs", "ended_at", "why"),
    [
        pytest.param(SILENT, STALL, "did nothing for 20 s", id="nothing at all"),
        pytest.param({"heard": lambda now: now}, None, "", id="bytes come"),
        pytest.param({"heard": lambda now: min(now, 50)}, 50 + STALL, "did nothing for 20 s", id="bytes came"),
        pytest.param({**SILENT, "progress": lambda now: now}, None, "", id="it reports progress"),
        pytest.param(
            {**SILENT, "progress": lambda now: now >= 9}, 9 + STALL, "did nothing for 20 s", id="it reports one step"
        ),
        pytest.param(
            {**SILENT, "cpu": lambda now: now}, PATIENCE - 2, "made no progress for 98 s", id="it computes, no more"
        ),
        pytest.param({"heard": lambda now: None}, None, "", id="nobody reads its answer"),
    ],
)
async def test_an_engine_that_is_stuck_is_ended(
    signs: dict[str, Callable[[float], Any]], ended_at: float | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(in_flight=1)
    scene.signs = signs
    found = await watched(scene, monkeypatch)
    assert (found or "").startswith(why)
    assert scene.killed_at == ended_at
    assert scene.drained == []


async def test_only_a_silent_engine_is_asked_for_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(ticks=60, in_flight=1)
    scene.signs = {"heard": lambda now: min(now, 30), "progress": lambda now: now}
    await watched(scene, monkeypatch)
    # The second report is the first that shows a step. That counts as a sign, so the next silence has its full length.
    assert scene.asked == [35, *(36 + PROGRESS_SECONDS * times for times in range(5))]


async def test_an_engine_that_fails_to_report_may_still_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(now: float) -> Hashable:
        raise ProviderUnavailable("it loads")

    scene = Scene(in_flight=1)
    scene.signs = {**SILENT, "progress": refuse, "cpu": lambda now: now}
    assert (await watched(scene, monkeypatch) or "").startswith("made no progress")
    assert scene.killed_at == PATIENCE - 2


async def test_a_short_request_timeout_leaves_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never less than the stall timeout: an engine that computes gets that long."""
    scene = Scene(in_flight=1, request_timeout=0.5)
    scene.signs = {**SILENT, "cpu": lambda now: now}
    await watched(scene, monkeypatch)
    assert scene.killed_at == STALL


async def test_after_a_pause_of_the_gateway_silence_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(in_flight=1)
    scene.pauses = {10.0: 1000.0}
    await watched(scene, monkeypatch)
    assert scene.killed_at == 1010 + STALL
    # A tick that only came late is no pause.
    scene = Scene(in_flight=1)
    scene.pauses = {10.0: 3.0}
    await watched(scene, monkeypatch)
    assert scene.killed_at == STALL
    scene = Scene(in_flight=1)
    scene.pauses = {10.0: 4.0}
    await watched(scene, monkeypatch)
    assert scene.killed_at == 14 + STALL


@pytest.mark.parametrize("missing", ["current_backend", "pid"])
async def test_an_engine_that_can_t_be_asked_is_left_alone(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(in_flight=1)
    setattr(scene, missing, None)
    assert await watched(scene, monkeypatch) is None


async def test_the_memory_is_measured_more_often_than_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(ticks=120)
    await watched(scene, monkeypatch)
    assert scene.measured == [(now, now in (0, 60)) for now in range(0, 120, 5)]


async def test_a_bug_of_a_backend_is_logged_once_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def bug(now: float) -> float:
        raise ZeroDivisionError

    scene = Scene(ticks=5, in_flight=1)
    scene.signs = {"heard": bug}
    assert await watched(scene, monkeypatch) is None
    assert scene.now == 5
    assert caplog.text.count("checking its engine failed") == 1

"""/ready tells the truth, and failed engines are tried again with growing delays."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from gateway.config import Engines, Model, Residence, Runtime
from gateway.engines import Engine, failures
from gateway.engines.recipe import Machine
from gateway.errors import Backoff, ProviderModelNotLoaded
from tests.engines.conftest import stand_still
from tests.engines.lone import stopped
from tests.gateway.client import Client, chat
from tests.gateway.running import FAST
from tests.support.real_engine import needs_xllamacpp, real
from tests.support.shared_memory import ONE, asked, engine_of, gateway_of, sized, whole

pytestmark = needs_xllamacpp


async def said(port: int, path: str) -> tuple[int, dict[str, object]]:
    async with await Client.connect(port) as client:
        await client.send(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode())
        answer = await client.answer()
        return answer.status, answer.json


async def test_ready_tells_the_truth_and_starts_nothing(test_model: Path) -> None:
    async with real(test_model, FAST) as (port, engine):
        status, body = await said(port, "/ready")
        assert (status, body) == (503, {"id": "tiny", "ready": False, "state": "stopped"})
        status, body = await said(port, "/ready/tiny")
        assert status == 503
        assert "its engine is stopped; the next request starts it" in json.dumps(body["error"])
        assert engine.launcher.starts == 0
        async with await Client.connect(port) as client:
            assert (await client.ask(chat("hi", max_tokens=1))).status == 200
        for path in ("/ready", "/ready/tiny"):
            assert await said(port, path) == (200, {"id": "tiny", "ready": True, "state": "ready"})
        assert (await said(port, "/ready/nobody"))[0] == 404
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        while engine.state == "ready":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        status, body = await said(port, "/ready/tiny")
        assert (status, body["state"]) == (503, "failed")
        assert "was killed by SIGKILL" in json.dumps(body["error"])
        status, body = await said(port, "/health")
        assert (status, body["status"], body["engines"]) == (200, "degraded", {"tiny": "failed"})


async def test_a_silent_engine_is_not_ready(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.core.model_server.READY_SECONDS", 30.0)
    async with gateway_of(model, {"one": Residence()}, Engines(), xllamacpp, tmp_path) as (gateway, _):
        await whole(gateway, "one")
        one, route = engine_of(gateway, "one"), gateway.routes["one"]
        assert await route.server.readiness() is None
        assert one.pid is not None
        stand_still(one.pid)
        with monkeypatch.context() as patch:
            patch.setattr("gateway.core.model_server.READY_SECONDS", 0.2)
            error = await route.server.readiness()
        os.kill(one.pid, signal.SIGCONT)
        assert "its engine says nothing for 0.2 s" in str(error)
        assert await route.server.readiness() is None


async def test_a_draining_engine_is_not_ready(model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path) -> None:
    async with gateway_of(model, {"one": sized(), "two": sized()}, ONE, xllamacpp, tmp_path) as (gateway, _):
        one = engine_of(gateway, "one")
        with await gateway.chat(asked("one", stream=True, max_tokens=300, ignore_eos=True)) as run:
            assert await run.payloads()
            other = asyncio.create_task(whole(gateway, "two"))
            while one.state != "draining":
                await one.lifecycle.changed()
            assert "its engine is draining; requests wait for it" in str(await gateway.routes["one"].server.readiness())
        await other


# Trying again

FAILING = Runtime(command=(sys.executable, "-c", "print('no such device'); raise SystemExit(3)"), args=("{port}",))


async def failure(engine: Engine) -> ProviderModelNotLoaded:
    with pytest.raises(ProviderModelNotLoaded) as caught:
        await engine.requests.ensure()
    return caught.value


async def test_a_failed_engine_is_tried_again_less_and_less_often(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "BACK_OFF", Backoff(0.05, 60.0))
    monkeypatch.setattr(failures, "WAITED_SECONDS", 0.15)
    now = [time.monotonic()]
    # Its clock, which goes on as we say: on a slow machine no wait would be long.
    monkeypatch.setattr(failures, "time", SimpleNamespace(monotonic=lambda: now[0]))
    broken = Engine(replace(model, engine=FAILING))
    # At once, after 0.05 s and after 0.1 s; what would be a longer wait is an answer.
    starts = [(await failure(broken), broken.launcher.starts)[1] for _ in range(6)]
    assert starts == [1, 2, 3, 4, 4, 4]
    error = await failure(broken)
    assert "no such device" in error.message
    assert error.retry_after == pytest.approx(0.2)
    assert broken.state == "failed"
    # Not for ever.
    now[0] += 0.2
    await failure(broken)
    assert broken.launcher.starts == 5
    await broken.stop()
    assert broken.status().state == "stopped"


async def test_a_success_ends_the_row_of_failures(model: Model, xllamacpp: Callable[[], Machine]) -> None:
    async with stopped(Engine(model, machine=xllamacpp)) as one:
        for _ in range(4):
            await one.requests.ensure()
            assert one.pid is not None
            os.kill(one.pid, signal.SIGKILL)
            while one.state != "failed":
                await one.lifecycle.changed()
        begin = asyncio.get_running_loop().time()
        await one.requests.ensure()
        # Each one served before it died: no wait was due.
        assert one.failures.in_a_row == 1
        assert one.failures.not_before <= begin
        assert (one.launcher.starts, one.crashes) == (5, 4)


async def test_an_engine_that_died_in_use_is_back_before_anybody_asks(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    async with gateway_of(model, {"one": Residence()}, Engines(), xllamacpp, tmp_path) as (gateway, _):
        one = engine_of(gateway, "one")
        with await gateway.chat(asked("one", stream=True, max_tokens=300, ignore_eos=True)) as run:
            assert await run.payloads()
            assert one.pid is not None
            os.kill(one.pid, signal.SIGKILL)
            while one.state != "failed":
                await one.lifecycle.changed()
        while one.status().state != "ready":
            await one.lifecycle.changed()
        assert not one.in_flight

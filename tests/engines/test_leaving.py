"""Clients that leave: the engine stops working for them, however far their request has come."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.llamacpp import LlamaCppBackend
from gateway.config import Engines, Model, Residence
from gateway.engines import Engine
from gateway.engines.recipe import Machine
from tests.engines.conftest import stand_still
from tests.gateway.client import Client, chat
from tests.gateway.running import FAST
from tests.patience import PATIENCE
from tests.support.real_engine import needs_xllamacpp, real
from tests.support.shared_memory import ONE, asked, engine_of, gateway_of, sized, whole

pytestmark = needs_xllamacpp

LONG = {"max_tokens": 400, "ignore_eos": True, "logprobs": True, "top_logprobs": 100}
LONGER = {**LONG, "max_tokens": 900}


async def slots(engine: Engine) -> list[int]:
    """Tokens written so far by each busy slot."""
    backend = engine.current_backend
    assert isinstance(backend, LlamaCppBackend)
    status, body = await backend.get("/slots")
    assert status == 200
    working = [slot for slot in json.loads(body) if slot["is_processing"]]
    return [slot["next_token"][0]["n_decoded"] if "next_token" in slot else 0 for slot in working]


async def free(engine: Engine) -> int:
    """The most tokens that any slot had written when it was seen last; returns once all are free."""
    maximum = 0
    async with asyncio.timeout(PATIENCE):
        while working := await slots(engine):
            maximum = max(maximum, *working)
    return maximum


@pytest.mark.parametrize("clients", [16, pytest.param(100, marks=pytest.mark.slow)])
async def test_nothing_is_left_of_clients_that_leave(test_model: Path, clients: int) -> None:
    """Half of them ask for whole answers, half for streams; each leaves at a different moment."""
    rolls = random.Random(3)
    async with real(test_model, FAST) as (port, engine):
        async with await Client.connect(port) as client:
            assert (await client.ask(chat("hi", max_tokens=1))).status == 200
        starts = engine.launcher.starts

        async def leave(at: int) -> None:
            async with await Client.connect(port) as client:
                await client.post(chat("Say hello.", stream=bool(at % 2), **LONGER))
                await asyncio.sleep(rolls.uniform(0, 0.2))

        maximum = 0
        for first in range(0, clients, 4):
            await asyncio.gather(*(leave(at) for at in range(first, first + 4)))
            maximum = max(maximum, await on_its_loop(engine, free))
        assert maximum < 900, "they were answered to their end"
        async with asyncio.timeout(PATIENCE):
            while engine.in_flight:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (engine.crashes, engine.launcher.starts) == (0, starts)


async def on_its_loop(engine: Engine, action: Callable[[Engine], Any]) -> Any:
    """The gateway runs in its own thread and loop."""
    assert engine.watching is not None
    loop = engine.watching.get_loop()
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(action(engine), loop))


async def leaves(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("stream", [False, True])
async def test_while_it_waits_for_others(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path, stream: bool
) -> None:
    async with gateway_of(model, {"one": sized(), "two": sized()}, ONE, xllamacpp, tmp_path) as (gateway, _):
        two = engine_of(gateway, "two")
        with await gateway.chat(asked("one", stream=True, **LONG)) as run:
            assert await run.payloads()
            task = asyncio.ensure_future(gateway.chat(asked("two", stream=stream)))
            while not gateway.residency.claims:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await leaves(task)
            while gateway.residency.claims:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert (len(two.requests.queue), two.in_flight, two.launcher.starts, two.state) == (0, 0, 0, "stopped")


@pytest.mark.parametrize("stream", [False, True])
async def test_while_it_loads(model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path, stream: bool) -> None:
    async with gateway_of(model, {"one": Residence()}, Engines(), xllamacpp, tmp_path) as (gateway, _):
        one = engine_of(gateway, "one")
        task = asyncio.ensure_future(gateway.chat(asked("one", stream=stream)))
        while one.state != "starting":
            await one.lifecycle.changed()
        await leaves(task)
        assert (len(one.requests.queue), one.in_flight) == (0, 0)
        # What is begun is ended: the next one finds it loaded.
        assert b"chat.completion" in await whole(gateway, "one")
        assert (one.launcher.starts, one.in_flight) == (1, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_before_the_engine_has_read_it(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path, stream: bool
) -> None:
    """The engine is stopped while the client comes and goes; once it continues, it does nothing for that client."""
    async with gateway_of(model, {"one": Residence()}, Engines(), xllamacpp, tmp_path) as (gateway, _):
        one = engine_of(gateway, "one")
        await whole(gateway, "one")
        assert one.pid is not None
        stand_still(one.pid)
        task = asyncio.ensure_future(gateway.chat(asked("one", stream=stream, **LONG)))
        while not one.in_flight:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await leaves(task)
        assert not one.in_flight
        os.kill(one.pid, signal.SIGCONT)
        assert await free(one) < 400
        assert b"chat.completion" in await whole(gateway, "one")
        assert one.launcher.starts == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_while_it_writes(model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path, stream: bool) -> None:
    async with gateway_of(model, {"one": Residence()}, Engines(), xllamacpp, tmp_path) as (gateway, _):
        one = engine_of(gateway, "one")
        await whole(gateway, "one")

        answered = asyncio.Event()

        async def answer() -> None:
            with await gateway.chat(asked("one", stream=stream, **LONG)) as run:
                await (run.payloads() if stream else run.whole())
                answered.set()
                await asyncio.get_running_loop().create_future()

        writes = False
        while not writes:
            answered.clear()
            task = asyncio.create_task(answer())
            # On a slow machine an answer may be whole before anybody looks: then there is another one.
            while not (writes := any(await slots(one))) and not answered.is_set():
                assert not task.done()
            await leaves(task)
        assert not one.in_flight
        assert await free(one) < 400
        assert one.launcher.starts == 1

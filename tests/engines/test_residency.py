"""Real engines that share memory, with a budget too small for all of them."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.config import Engines, Model, Residence, load
from gateway.config.values import Group
from gateway.core import Gateway
from gateway.engines import Engine, Residency, memory
from gateway.engines.memory import Footprint
from gateway.engines.recipe import Machine
from gateway.errors import GatewayError, ProviderModelNotLoaded, ProviderRateLimit
from tests.conftest import ROOT
from tests.engines.conftest import WINDOW
from tests.support.shared_memory import EACH, ONE, asked, engine_of, gateway_of, rest, sized, whole

LONG = {"max_tokens": 300, "ignore_eos": True, "stream": True}


async def test_two_that_do_not_fit_together_answer_200_mixed_requests(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    names = {"one": sized(), "two": sized()}
    async with gateway_of(model, names, ONE, xllamacpp, tmp_path) as (gateway, seen):
        rolls = random.Random(5)
        gate = asyncio.Semaphore(20)

        async def client(at: int) -> bool:
            name = rolls.choice(["one", "two"])
            async with gate:
                if at % 4:
                    return b"chat.completion" in await whole(gateway, name)
                with await gateway.chat(asked(name, stream=True)) as run:
                    return b'"finish_reason"' in (await rest(run))[-1]

        assert await asyncio.gather(*map(client, range(200))) == [True] * 200
        assert seen.maximum == 1
        assert max(seen.counted, seen.resident) <= 100 * memory.MB
        assert {"one", "two"} == set(seen.started())
        # Requests are served together, not one swap for each of them.
        assert len(seen.started()) < 60


async def test_an_engine_that_is_always_in_use_gives_way_too(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    soon = replace(ONE, swap_after_seconds=0.5)
    async with gateway_of(model, {"busy": sized(), "rare": sized()}, soon, xllamacpp, tmp_path) as (gateway, seen):
        await whole(gateway, "busy")
        done = asyncio.Event()
        answered = 0

        async def hammer() -> None:
            nonlocal answered
            while not done.is_set():
                await whole(gateway, "busy")
                answered += 1

        clients = [asyncio.create_task(hammer()) for _ in range(4)]
        for _ in range(3):
            assert b"chat.completion" in await whole(gateway, "rare")
        done.set()
        await asyncio.gather(*clients)
        assert answered
        assert seen.maximum == 1


async def test_answers_in_flight_end_before_their_engine_goes(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    async with gateway_of(model, {"one": sized(), "two": sized()}, ONE, xllamacpp, tmp_path) as (gateway, seen):
        one, two = engine_of(gateway, "one"), engine_of(gateway, "two")
        # So much that the engine can't write it all before it is read.
        with await gateway.chat(asked("one", **LONG, top_logprobs=600, logprobs=True)) as run:
            assert await run.payloads()
            other = asyncio.create_task(whole(gateway, "two"))
            while one.state != "draining":
                await one.lifecycle.changed()
            waiting = asyncio.create_task(whole(gateway, "one"))
            while not two.requests.queue or not one.requests.queue:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert (two.state, two.waits_for, one.waits_for) == ("stopped", "memory", "drain")
            assert one.status().in_flight == 1
            assert b'"length"' in (await rest(run))[-1]
            assert not other.done()
        assert b"chat.completion" in await other
        assert b"chat.completion" in await waiting
        assert seen.started() == ["one", "two", "one"]


async def test_a_claim_that_was_given_up_drains_nobody(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    async with gateway_of(model, {"one": sized(), "two": sized()}, ONE, xllamacpp, tmp_path) as (gateway, _):
        one, two = engine_of(gateway, "one"), engine_of(gateway, "two")
        with await gateway.chat(asked("one", **LONG)) as run:
            assert await run.payloads()
            pid = one.pid
            other = asyncio.create_task(whole(gateway, "two"))
            while one.state != "draining":
                await one.lifecycle.changed()
            waiting = asyncio.create_task(whole(gateway, "one", stream=False))
            other.cancel()
            with pytest.raises(asyncio.CancelledError):
                await other
            assert b"chat.completion" in await waiting
            assert (one.state, one.pid, two.state, len(two.requests.queue)) == ("ready", pid, "stopped", 0)
        assert not one.in_flight
        assert not gateway.residency.claims


async def test_a_larger_budget_helps_those_that_wait_already(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    async with gateway_of(model, {"one": sized(), "two": sized()}, ONE, xllamacpp, tmp_path) as (gateway, _):
        one = engine_of(gateway, "one")
        with await gateway.chat(asked("one", **LONG, top_logprobs=600, logprobs=True)) as run:
            assert await run.payloads()
            pid = one.pid
            other = asyncio.create_task(whole(gateway, "two"))
            while one.state != "draining":
                await one.lifecycle.changed()
            gateway.apply(replace(gateway.config, engines=Engines(memory_budget=3 * EACH)))
            assert b"chat.completion" in await other
            assert (one.state, one.pid, one.in_flight) == ("ready", pid, 1)


async def test_an_engine_that_waits_for_memory_can_be_stopped(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    async with gateway_of(model, {"one": sized(), "two": sized()}, ONE, xllamacpp, tmp_path) as (gateway, _):
        one, two = engine_of(gateway, "one"), engine_of(gateway, "two")
        with await gateway.chat(asked("one", **LONG, top_logprobs=600, logprobs=True)) as run:
            assert await run.payloads()
            waiting = asyncio.create_task(refused(gateway, "two"))
            while one.state != "draining":
                await one.lifecycle.changed()
            await two.stop()
            assert "was stopped while it started" in str(await waiting)
            while gateway.residency.claims:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert (one.state, two.state, two.launcher.starts) == ("ready", "stopped", 0)


async def test_three_where_two_fit_the_least_worthy_goes(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    names = {"pinned": sized(pinned=True), "old": sized(), "new": sized()}
    limits = Engines(memory_budget=130 * memory.MB)
    async with gateway_of(model, names, limits, xllamacpp, tmp_path) as (gateway, seen):
        await whole(gateway, "pinned")
        await whole(gateway, "old")
        await whole(gateway, "new")
        states = {name: engine_of(gateway, name).state for name in names}
        assert states == {"pinned": "ready", "old": "stopped", "new": "ready"}
        await whole(gateway, "old")
        assert engine_of(gateway, "pinned").launcher.starts == 1
        assert seen.maximum == 2


async def test_groups_that_exclude_each_other(model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path) -> None:
    limits = Engines(groups={"large": Group(excludes=("large", "picture"))})
    names = {
        "a": Residence(group="large"),
        "b": Residence(group="large"),
        "c": Residence(group="picture"),
        "free": Residence(),
    }
    async with gateway_of(model, names, limits, xllamacpp, tmp_path) as (gateway, _):
        engines = {name: engine_of(gateway, name) for name in names}

        def ready() -> set[str]:
            return {name for name, engine in engines.items() if engine.state == "ready"}

        for name, left in [("free", {"free"}), ("a", {"free", "a"}), ("b", {"free", "b"}), ("c", {"free", "c"})]:
            await whole(gateway, name)
            assert ready() == left


async def test_idle_engines_are_unloaded_and_come_back(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    names = {"idle": Residence(idle_ttl_seconds=0.2), "kept": Residence(idle_ttl_seconds=0.2, pinned=True)}
    async with gateway_of(model, names, Engines(), xllamacpp, tmp_path) as (gateway, seen):
        idle, kept = engine_of(gateway, "idle"), engine_of(gateway, "kept")
        await asyncio.gather(whole(gateway, "idle"), whole(gateway, "kept"))
        while idle.state != "stopped":
            await idle.lifecycle.changed()
        assert kept.state == "ready"
        assert b"chat.completion" in await whole(gateway, "idle")
        assert seen.started().count("idle") == 2


async def test_an_idle_engine_gives_way_to_one_that_needs_more_than_planned(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    limits = Engines(memory_budget=60 * memory.MB)
    names = {"idle": Residence(), "busy": Residence()}
    async with gateway_of(model, names, limits, xllamacpp, tmp_path) as (gateway, seen):
        idle, busy = engine_of(gateway, "idle"), engine_of(gateway, "busy")
        # Another context window is another entry among the learnt sizes.
        idle.model = replace(idle.model, context_window=WINDOW // 2)
        for engine in (idle, busy):
            gateway.residency.learnt.saw(engine.model, Footprint(20 * memory.MB), 1.0)
        await asyncio.gather(idle.requests.join(), busy.requests.join())
        while idle.held.ram + busy.held.ram <= 60 * memory.MB:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (idle.state, busy.state) == ("ready", "ready")  # both have answers to give
        idle.requests.leave()
        while idle.state != "stopped":
            await idle.lifecycle.changed()
        assert busy.state == "ready"
        busy.requests.leave()
        assert ("idle", "draining") in seen.changes
        assert seen.counted > 60 * memory.MB


# Refusals


async def refused(gateway: Gateway, name: str) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        await whole(gateway, name)
    return caught.value


async def test_an_engine_that_can_never_fit(model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path) -> None:
    names = {"large": Residence(memory=101 * memory.MB), "small": sized()}
    async with gateway_of(model, names, ONE, xllamacpp, tmp_path) as (gateway, _):
        await whole(gateway, "small")
        error = await refused(gateway, "large")
        assert (type(error), error.code) == (ProviderModelNotLoaded, "no_memory")
        assert error.message == (
            "model 'large' needs 101 MB, which is more than engines may hold (100 MB); raise engines.memory_budget,"
            " or give the model a smaller context_window or parallel"
        )
        assert engine_of(gateway, "small").state == "ready"


async def test_an_engine_beside_a_pinned_one(model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path) -> None:
    async with gateway_of(model, {"pin": sized(pinned=True), "b": sized()}, ONE, xllamacpp, tmp_path) as (gateway, _):
        await whole(gateway, "pin")
        error = await refused(gateway, "b")
        assert "model 'b' needs 60 MB; pin keep 60 MB of 100 MB" in error.message


async def test_a_queue_has_an_end(model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path) -> None:
    limits = replace(ONE, queue_length=2, queue_timeout_seconds=3)
    async with gateway_of(model, {"one": sized(), "two": sized()}, limits, xllamacpp, tmp_path) as (gateway, _):
        two = engine_of(gateway, "two")
        with await gateway.chat(asked("one", **LONG, top_logprobs=600, logprobs=True)) as run:
            # Nobody reads on: the answer doesn't end.
            assert await run.payloads()
            waiting = [asyncio.create_task(refused(gateway, "two")) for _ in range(2)]
            while len(two.requests.queue) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
            places = [two.progress(ticket.key) for ticket in two.requests.queue]
            assert [(p.position, p.waiting, p.phase) for p in places if p] == [(1, 2, "memory"), (2, 2, "memory")]
            full = await refused(gateway, "two")
            assert (type(full), full.code, full.status) == (ProviderRateLimit, "queue_full", 429)
            for late in await asyncio.gather(*waiting):
                assert (type(late), late.code) == (ProviderModelNotLoaded, "queue_timeout")
                assert "other models use the memory" in late.message
        assert b"chat.completion" in await whole(gateway, "two")


async def test_a_drain_has_an_end(model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path) -> None:
    limits = replace(ONE, drain_timeout_seconds=0.3)
    async with gateway_of(model, {"one": sized(), "two": sized()}, limits, xllamacpp, tmp_path) as (gateway, _):
        with await gateway.chat(asked("one", **LONG, top_logprobs=600, logprobs=True)) as run:
            assert await run.payloads()
            assert b"chat.completion" in await whole(gateway, "two")
            with pytest.raises(GatewayError, match="went away in the middle"):
                await rest(run)


def test_the_example_of_the_documentation_loads(tmp_path: Path) -> None:
    page = (ROOT / "docs/engines.md").read_text(encoding="utf-8")
    (tmp_path / "config.yaml").write_text(page.partition("```yaml\n")[2].partition("```")[0], encoding="utf-8")
    config = load(tmp_path / "config.yaml", {})
    assert config.models["small"].residence.pinned
    assert config.models["other"].residence.memory == 14 * 10**9
    assert config.engines.excludes == {"large": frozenset({"large"})}


async def test_the_measured_need_is_saved(model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path) -> None:
    for time in ("first", "second"):
        async with gateway_of(model, {"one": Residence()}, Engines(), xllamacpp, tmp_path) as (gateway, _):
            engine = engine_of(gateway, "one")
            await whole(gateway, "one")
            status = engine.status()
            assert status.expected_bytes is not None
            if time == "second":
                learnt = gateway.residency.learnt.peak(engine.model)
                assert learnt is not None
                assert learnt.load_seconds
                assert status.expected_bytes >= learnt.ram
            assert 0 < status.resident_bytes <= status.expected_bytes * 1.1
    kept = json.loads((tmp_path / "engines.json").read_bytes())
    ((key, peak),) = kept.items()
    assert str(model.path) in key
    assert 10 * memory.MB < peak["ram"] < 200 * memory.MB


async def test_a_process_that_is_gone_teaches_nothing(model: Model, tmp_path: Path) -> None:
    residency = Residency(state_dir=tmp_path)
    engine = Engine(model, residency=residency)
    await residency.measure(engine, 2**22 + 1, with_gpu=True)
    assert residency.learnt.peak(model) is None
    assert not os.listdir(tmp_path)


async def test_weights_that_are_gone_teach_nothing(model: Model, tmp_path: Path) -> None:
    residency = Residency(state_dir=tmp_path)
    engine = Engine(replace(model, path=tmp_path / "gone.gguf"), residency=residency)
    engine.lifecycle.to("admit")
    engine.lifecycle.to("came")
    await residency.measure(engine, os.getpid(), with_gpu=True)
    assert engine.held == Footprint()
    assert not os.listdir(tmp_path)

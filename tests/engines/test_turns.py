"""Whose turn it is: service tiers and swaps, on real engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.config import Model
from gateway.core import Gateway, Run
from gateway.engines import Engine
from gateway.engines.recipe import Machine
from gateway.line import Line, Waiter
from gateway.wire.chat import DEFAULT, FLEX, PRIORITY, ChatRequest
from tests.support.shared_memory import asked, engine_of, gateway_of, limits, notes_on, sized, whole


def one_place(model: Model) -> Model:
    return replace(model, engine=replace(model.engine, parallel=1))


async def waits(engine: Engine, count: int) -> None:
    while len(engine.requests.queue) < count:  # noqa: ASYNC110 - nothing tells of requests that come
        await asyncio.sleep(0.01)


async def held(gateway: Gateway, name: str, tier: str = "default") -> Run:
    """An answer that is in flight until it is closed."""
    return await gateway.chat(asked(name, stream=True, service_tier=tier))


async def test_flex_waits_for_a_place_and_others_do_not(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    async with gateway_of(one_place(model), {"a": sized()}, limits(), xllamacpp, tmp_path) as (gateway, _):
        engine = engine_of(gateway, "a")
        run = await held(gateway, "a")
        flex = [asked("a", service_tier="flex") for _ in range(2)]
        ended: list[int] = []

        async def answered(at: int) -> None:
            with await gateway.chat(flex[at]) as answer:
                await answer.whole()
            ended.append(at)

        tasks = [asyncio.create_task(answered(0))]
        await waits(engine, 1)
        tasks.append(asyncio.create_task(answered(1)))
        await waits(engine, 2)
        assert await whole(gateway, "a")  # a default request goes straight on
        assert (engine.in_flight, engine.requests.places.flex, len(engine.requests.queue), ended) == (1, 0, 2, [])
        assert flex[1].serving.describe().startswith("queued for=place position=2 waiting=2")
        assert engine.status().waits_for == "place"
        (line,) = notes_on(gateway, "a")
        assert line.startswith("a: 2 requests wait for a free slot, the first for ")
        assert line.endswith(" s: 2 flex")
        run.close()
        await asyncio.gather(*tasks)
        assert ended == [0, 1]
        assert (engine.in_flight, engine.requests.places.flex, len(engine.requests.queue)) == (0, 0, 0)
        # With a free place it needn't wait.
        assert await whole(gateway, "a", service_tier="flex")


async def test_a_queue_counts_its_requests() -> None:
    queue: Line[None] = Line()
    assert (queue.tiers, queue.begun) == ({"priority": 0, "default": 0, "flex": 0}, 0)
    for rank in (DEFAULT, FLEX, PRIORITY, FLEX):
        queue.add(Waiter(object(), rank))
    aside = queue.add(Waiter(object(), FLEX, 40.0, begun=True))
    assert (queue.tiers, queue.begun) == ({"priority": 1, "default": 1, "flex": 3}, 1)
    assert next(iter(queue)) is aside
    aside.aged = True  # it goes as any other, and is flex all the same
    assert queue.tiers["flex"] == 3
    with pytest.raises(TimeoutError):
        await queue.wait(aside, 0)
    assert (queue.tiers["flex"], queue.begun, len(queue)) == (2, 0, 4)


async def test_flex_goes_on_at_last(model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path) -> None:
    async with gateway_of(one_place(model), {"a": sized()}, limits(flex_max_wait_seconds=0.2), xllamacpp, tmp_path) as (
        gateway,
        _,
    ):
        run = await held(gateway, "a")
        second = await held(gateway, "a", "flex")
        assert engine_of(gateway, "a").in_flight == 2
        second.close()
        run.close()


async def test_a_flex_client_that_leaves_gives_its_turn_to_the_next(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    async with gateway_of(one_place(model), {"a": sized()}, limits(), xllamacpp, tmp_path) as (gateway, _):
        engine = engine_of(gateway, "a")
        run = await held(gateway, "a", "flex")
        gone, stays = (asyncio.create_task(whole(gateway, "a", service_tier="flex")) for _ in range(2))
        await waits(engine, 2)
        gone.cancel()
        await asyncio.wait({gone})
        run.close()
        assert await stays
        assert (engine.in_flight, engine.requests.places.flex) == (0, 0)


async def test_flex_gives_its_memory_to_others_at_once_and_waits_for_theirs(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    two = {"a": sized(), "b": sized()}
    async with gateway_of(model, two, limits(), xllamacpp, tmp_path) as (gateway, _):
        flex = await held(gateway, "a", "flex")
        default = asyncio.create_task(held(gateway, "b"))
        await waits(engine_of(gateway, "b"), 1)
        while engine_of(gateway, "a").state == "ready":
            await engine_of(gateway, "a").lifecycle.changed()
        flex.close()
        run = await default
        request = asked("a", service_tier="flex")
        back = asyncio.create_task(_whole(gateway, request))
        await waits(engine_of(gateway, "a"), 1)
        assert await whole(gateway, "b")
        while not request.serving.describe().endswith("held-by=b"):  # noqa: ASYNC110 - a plan tells nobody
            await asyncio.sleep(0.01)
        status = engine_of(gateway, "a").status()
        assert (status.waits_for, status.held_by, engine_of(gateway, "b").state) == ("memory", ("b",), "ready")
        (line,) = notes_on(gateway, "a")
        assert line.startswith("a: 1 request waits for memory that b holds, the first for ")
        assert line.endswith(" s: 1 flex")
        run.close()
        assert await back


async def test_the_loaded_model_goes_first_up_to_the_bound(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    """Requests for `a` go on while one for `b` waits, as long as `a` is in use."""
    two = {"a": sized(), "b": sized()}
    async with gateway_of(model, two, limits(), xllamacpp, tmp_path) as (gateway, seen):
        run = await held(gateway, "a")
        other = asyncio.create_task(whole(gateway, "b"))
        await waits(engine_of(gateway, "b"), 1)
        for _ in range(3):
            assert await whole(gateway, "a")
        assert not other.done()
        assert seen.started() == ["a"]
        run.close()
        assert await other
        assert seen.started() == ["a", "b"]


async def test_after_the_bound_the_loaded_model_gives_way(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    two = {"a": sized(), "b": sized()}
    async with gateway_of(model, two, limits(swap_after_seconds=0.5), xllamacpp, tmp_path) as (gateway, seen):
        run = await held(gateway, "a")
        other = asyncio.create_task(whole(gateway, "b"))
        while engine_of(gateway, "a").state != "draining":
            await engine_of(gateway, "a").lifecycle.changed()
        run.close()
        assert await other
        assert seen.started() == ["a", "b"]


async def test_flex_that_waits_for_a_place_outlasts_an_eviction(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    """Its engine ends for another model's sake, and starts again for it."""
    two = {"a": sized(), "b": sized()}
    async with gateway_of(one_place(model), two, limits(), xllamacpp, tmp_path) as (gateway, seen):
        run = await held(gateway, "a", "flex")
        waiting = asyncio.create_task(whole(gateway, "a", service_tier="flex"))
        await waits(engine_of(gateway, "a"), 1)
        other = asyncio.create_task(whole(gateway, "b"))
        while engine_of(gateway, "a").state != "draining":
            await engine_of(gateway, "a").lifecycle.changed()
        run.close()
        assert await other
        assert await waiting
        assert seen.started() == ["a", "b", "a"]


async def test_flex_that_waits_for_a_place_outlasts_an_unload(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    async with gateway_of(one_place(model), {"a": sized()}, limits(), xllamacpp, tmp_path) as (gateway, seen):
        engine = engine_of(gateway, "a")
        run = await held(gateway, "a", "flex")
        waiting = asyncio.create_task(whole(gateway, "a", service_tier="flex"))
        await waits(engine, 1)
        unloading = asyncio.create_task(engine.shutdown.unload())
        while engine.state != "draining":
            await engine.lifecycle.changed()
        run.close()
        await unloading
        assert await waiting
        assert seen.started() == ["a", "a"]


async def test_an_engine_is_known_to_pause_by_its_last_return(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    two = {"a": sized(), "b": sized()}
    async with gateway_of(model, two, limits(), xllamacpp, tmp_path) as (gateway, _):
        engine = engine_of(gateway, "a")
        assert await whole(gateway, "a")
        assert not engine.pauses
        assert await whole(gateway, "b")
        engine.requests.places.idle_since -= 60  # a person thought for a minute
        assert await whole(gateway, "a")
        assert engine.pauses
        assert await whole(gateway, "b")
        engine.load_seconds = 1000.0  # compared with that, its next request comes soon
        assert await whole(gateway, "a")
        assert not engine.pauses


async def _whole(gateway: Gateway, request: ChatRequest) -> bytes:
    with await gateway.chat(request) as run:
        return await run.whole()

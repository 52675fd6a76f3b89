"""Flex requests before a server that the gateway doesn't start: real HTTP, an engine whose answers a test holds."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.config import Config, Engines, Model, Runtime
from gateway.core import Gateway, Route
from gateway.core.flex_line import Load, free_places
from gateway.errors import ProviderRateLimit
from gateway.features.vectors.wire.embeddings import CreateEmbedding
from gateway.wire.chat import ChatRequest, encode
from tests.gateway.double import Double, Exchange
from tests.patience import PATIENCE

ANSWER = {
    "id": "1", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("others", "all", "places", "expected"),
    [
        (0, 0, None, True),
        (0, 9, None, True),
        (1, 1, None, False),
        (0, 0, 2, True),
        (1, 1, 2, True),
        (1, 2, 2, False),
        (0, 2, 2, False),
        (3, 3, 2, False),
    ],
)
def test_who_may_go(others: int, all: int, places: int | None, expected: bool) -> None:
    """With unknown places, flex requests go together, and wait for all others."""
    assert (free_places(Load(others, all), places) > 0) is expected


class Held:
    """Answers each request once `let` is called for it, by its text."""

    def __init__(self) -> None:
        self.came: list[str] = []
        self._gates: dict[str, asyncio.Event] = {}
        self._changed = asyncio.Condition()

    async def script(self, exchange: Exchange) -> None:
        asked = exchange.json
        text = asked["messages"][0]["content"] if "messages" in asked else "vectors"
        self.came.append(text)
        gate = self._gates.setdefault(text, asyncio.Event())
        async with self._changed:
            self._changed.notify_all()
        await gate.wait()
        await exchange.whole(ANSWER if text != "vectors" else {"data": [{"embedding": [1.0], "index": 0}]})

    def let(self, text: str) -> None:
        self._gates.setdefault(text, asyncio.Event()).set()

    async def has(self, *texts: str) -> None:
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: set(texts) <= set(self.came))


@asynccontextmanager
async def before(held: Held, parallel: int | None = None, **limits: Any) -> AsyncIterator[tuple[Gateway, Route]]:
    async with asyncio.timeout(PATIENCE), Double(held.script).serve() as double:
        url = f"http://127.0.0.1:{double.address.port}"
        model = Model(name="m", runtime="openai", base_url=url, engine=Runtime(parallel=parallel))
        config = Config(
            source=Path(__file__), active_model="m", models={"m": model}, engines=Engines(**limits), state_dir=Path()
        )
        async with Gateway(config) as gateway:
            yield gateway, gateway.routes["m"]


def asked(text: str, tier: str | None) -> ChatRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    return ChatRequest.parse(encode(body if tier is None else {**body, "service_tier": tier}))


async def answer(gateway: Gateway, text: str, tier: str | None = None, request: ChatRequest | None = None) -> str:
    with await gateway.chat(request or asked(text, tier)) as run:
        return str(json.loads(await run.whole())["choices"][0]["message"]["content"])


async def in_line(route: Route, count: int) -> None:
    while route.line is None or len(route.line) < count:  # noqa: ASYNC110 - nothing tells of requests that wait
        await asyncio.sleep(0)


async def test_flex_waits_for_all_others_where_nobody_knows_the_places() -> None:
    held = Held()
    async with before(held) as (gateway, route):
        first = asyncio.create_task(answer(gateway, "person"))
        await held.has("person")
        requests = [asked(text, "flex") for text in ("one", "two")]
        flex = [asyncio.create_task(answer(gateway, "", request=request)) for request in requests]
        await in_line(route, 2)
        assert requests[1].serving.describe() == "queued for=place position=2 waiting=2"
        assert route.line is not None
        assert time.monotonic() > route.line.since
        second = asyncio.create_task(answer(gateway, "another"))
        await held.has("another")  # it doesn't wait
        held.let("person")
        await first
        assert held.came == ["person", "another"]
        held.let("another")
        await second
        await held.has("one", "two")
        held.let("one")
        held.let("two")
        assert await asyncio.gather(*flex) == ["Hi", "Hi"]
        assert (route.requests.count, route.line.inside, route.line.going, len(route.line)) == (0, 0, 0, 0)


async def test_flex_takes_the_places_that_are_left() -> None:
    held = Held()
    async with before(held, parallel=2) as (gateway, route):
        person = asyncio.create_task(answer(gateway, "person"))
        await held.has("person")
        flex = [asyncio.create_task(answer(gateway, text, "flex")) for text in ("one", "two", "three")]
        await held.has("one")
        await in_line(route, 2)
        assert held.came == ["person", "one"]
        held.let("one")
        await held.has("two")
        await in_line(route, 1)
        held.let("person")
        await held.has("three")
        held.let("two")
        held.let("three")
        await asyncio.gather(person, *flex)


async def test_it_goes_on_at_last_and_others_are_refused() -> None:
    held = Held()
    async with before(held, flex_max_wait_seconds=0.3, queue_length=1) as (gateway, route):
        person = asyncio.create_task(answer(gateway, "person"))
        await held.has("person")
        flex = asyncio.create_task(answer(gateway, "one", "flex"))
        await in_line(route, 1)
        with pytest.raises(ProviderRateLimit, match=r"1 requests are already waiting") as full:
            await answer(gateway, "two", "flex")
        assert (full.value.code, full.value.retry_after) == ("queue_full", 5)
        await held.has("one")
        held.let("one")
        held.let("person")
        await asyncio.gather(person, flex)


async def test_a_client_that_leaves_the_line() -> None:
    held = Held()
    async with before(held) as (gateway, route):
        person = asyncio.create_task(answer(gateway, "person"))
        await held.has("person")
        gone, stays = (asyncio.create_task(answer(gateway, text, "flex")) for text in ("one", "two"))
        await in_line(route, 2)
        gone.cancel()
        await asyncio.wait({gone})
        held.let("person")
        held.let("two")
        await asyncio.gather(person, stays)
        assert held.came == ["person", "two"]
        assert route.requests.count == 0


async def vectors(route: Route) -> bytes:
    fields = CreateEmbedding(["a"], service_tier="flex").fields
    async with route.post("embeddings", fields, "embeddings") as reply:
        assert reply.tier == "flex"
        return await reply.whole()


async def test_a_reload_waits_for_the_line_of_a_model_that_it_changes() -> None:
    held = Held()
    async with before(held) as (gateway, route):
        person = asyncio.create_task(answer(gateway, "person"))
        await held.has("person")
        gone, chat = (asyncio.create_task(answer(gateway, text, "flex")) for text in ("gone", "one"))
        other = asyncio.create_task(vectors(route))
        await in_line(route, 3)
        gateway.apply(replace(gateway.config, models={"m": replace(route.model, display_name="another")}))
        (leaving,) = gateway.leaving
        held.let("person")
        gone.cancel()
        await asyncio.gather(person, held.has("one", "vectors"))
        held.let("vectors")
        held.let("one")
        assert await chat == "Hi"
        assert b"embedding" in await other
        await leaving
        await asyncio.sleep(0)  # it is forgotten in the next turn of the loop
        assert not gateway.leaving


@pytest.mark.parametrize("leaves", ["served", "cancelled"])
async def test_a_changed_model_ends_once_the_last_has_left_its_line(leaves: str) -> None:
    held = Held()
    async with before(held, parallel=1) as (gateway, route):
        person = asyncio.create_task(answer(gateway, "person"))
        await held.has("person")
        flex = asyncio.create_task(vectors(route))
        await in_line(route, 1)
        gateway.apply(replace(gateway.config, models={"m": replace(route.model, display_name="another")}))
        (leaving,) = gateway.leaving
        held.let("person")
        await person
        if leaves == "cancelled":
            flex.cancel()
        held.let("vectors")
        await asyncio.wait({flex})
        await leaving


async def test_requests_that_are_no_chats_wait_too() -> None:
    held = Held()
    async with before(held) as (gateway, route):
        person = asyncio.create_task(answer(gateway, "person"))
        await held.has("person")
        flex = asyncio.create_task(vectors(route))
        await in_line(route, 1)
        held.let("person")
        await person
        held.let("vectors")
        assert b"embedding" in await flex
        assert held.came[0] == "person"

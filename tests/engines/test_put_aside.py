"""Flex answers that give way in the middle, and go on as if nothing had been."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.llamacpp_flex import FlexReply, LlamaCppFlex
from gateway.backends.resumable import written
from gateway.config import Model
from gateway.core import Gateway
from gateway.engines import Engine
from gateway.engines.places import Running, put_aside
from gateway.engines.recipe import Machine
from gateway.features.operations.live import in_flight as in_flight_now
from gateway.features.operations.snapshot import snapshot
from gateway.wire.chat import ChatRequest
from tests.support.put_aside import TOKENS, asked, flex, in_flight, places, put_aside_by, streamed, whole
from tests.support.shared_memory import engine_of, gateway_of, limits, notes_on, rest, sized

ANSWERS = int(os.environ.get("CTXGATE_TEST_PUT_ASIDE", "12"))


async def whole_body(gateway: Gateway, request: ChatRequest) -> bytes:
    with await gateway.chat(request) as run:
        return await run.whole()


def calls(body: bytes) -> list[Any]:
    return [call["function"] for call in json.loads(body)["choices"][0]["message"]["tool_calls"]]


async def forgotten(engine: Engine) -> None:
    assert engine.accepting is not None
    backend = engine.accepting.flexible()
    assert isinstance(backend, LlamaCppFlex)
    while backend.forgetting:
        await asyncio.wait(backend.forgetting)


async def test_words_are_those_of_undisturbed_answers(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    """An interactive request takes the only place at a random token of each answer."""
    rolls = random.Random(19)
    async with gateway_of(places(model), {"a": sized()}, limits(), xllamacpp, tmp_path) as (gateway, _):
        engine = engine_of(gateway, "a")
        for number in range(ANSWERS):
            text = f"Number {number}: {rolls.choice(['cats 😀', 'the weather in Oslo', 'radar', 'dogs'])}?"
            alone = await whole(gateway, flex("a", text))
            before = engine.requests.places.put_asides
            while engine.requests.places.put_asides == before:
                task = asyncio.create_task(whole(gateway, flex("a", text)))
                for at in sorted(rolls.sample(range(1, TOKENS - 5), 2)):
                    if await in_flight(engine, at, task):
                        await whole(gateway, asked("a", "Say hello.", max_tokens=3))
                assert await task == alone, number
        assert (engine.in_flight, engine.requests.places.flex, len(engine.requests.queue)) == (0, 0, 0)
        assert engine.requests.backend is not None
        assert list((tmp_path / "prompts").glob("aside-*")) == []


async def test_an_answer_that_lacks_only_its_end_gets_no_further_token(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    async with gateway_of(places(model), {"a": sized()}, limits(), xllamacpp, tmp_path) as (gateway, _):
        engine = engine_of(gateway, "a")
        request = flex("a", "Tell me of radars.")
        alone = await whole(gateway, request)
        written = 0
        while written < TOKENS:  # often enough the engine says that it ended before the other request is there
            task = asyncio.create_task(whole(gateway, request))
            reply = await in_flight(engine, TOKENS, task)
            await whole(gateway, asked("a", "Say hello.", max_tokens=3))
            assert await task == alone
            written = reply.tokens if reply is not None and reply.history else 0
        assert (engine.in_flight, engine.requests.places.flex, len(engine.requests.queue)) == (0, 0, 0)
        await forgotten(engine)
        assert list((tmp_path / "prompts").glob("aside-*")) == []


async def test_memory_is_given_away_in_the_middle(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    """Four streamed answers give way to a request for another model, whose engine needs their memory."""
    names = {"a": sized(), "b": sized()}
    async with gateway_of(places(model, 4), names, limits(), xllamacpp, tmp_path) as (gateway, seen):
        texts = [f"Number {number}: tell me of radars." for number in range(4)]
        alone = [await streamed(gateway, flex("a", text, stream=True)) for text in texts]
        engine = engine_of(gateway, "a")
        while not engine.requests.places.put_asides:
            requests = [flex("a", text, stream=True) for text in texts]
            tasks = [asyncio.create_task(streamed(gateway, request)) for request in requests]
            while len(engine.requests.places.flexible) < 4 and not any(task.done() for task in tasks):  # noqa: ASYNC110
                await asyncio.sleep(0)
            await in_flight(engine, 3, tasks[0])
            run = await gateway.chat(asked("b", max_tokens=3))
            assert seen.started()[-2:] == ["a", "b"]
            aside = [request.serving.describe() for request in requests]
            with run:
                await run.whole()
            assert await asyncio.gather(*tasks) == alone
        assert any(text.startswith("put-aside queued for=memory position=") for text in aside), aside
        assert seen.started()[-3:] == ["a", "b", "a"]
        await forgotten(engine)
        assert list((tmp_path / "prompts").glob("aside-*")) == []


async def test_the_status_names_an_answer_that_is_aside(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    """Beside it, a flex request waits that hasn't begun."""
    async with gateway_of(places(model), {"a": sized()}, limits(), xllamacpp, tmp_path) as (gateway, _):
        engine = engine_of(gateway, "a")
        task, run = await put_aside_by(gateway, asked("a", stream=True), stream=True)
        while not engine.requests.queue:  # noqa: ASYNC110
            await asyncio.sleep(0)
        other = asyncio.create_task(whole(gateway, flex("a", "Hello.", max_tokens=2)))
        while len(engine.requests.queue) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        (shown,) = snapshot(gateway, None)["models"]
        assert (shown["waiting"], shown["waiting_tiers"]["flex"], shown["put_aside"]) == (2, 2, 1)
        assert shown["engine"]["put_aside"] == 1
        (line,) = notes_on(gateway, "a")
        assert line.startswith("a: 2 requests wait for a free slot, the first for ")
        assert line.endswith(" s: 2 flex (1 put aside)")
        (aside,) = [one for one in in_flight_now(gateway) if one["progress"].startswith("put-aside queued for=place")]
        assert (aside["model"], aside["state"], aside["chunks"] > 0) == ("a", "waits", True)
        run.close()
        await asyncio.gather(task, other)
        (shown,) = snapshot(gateway, None)["models"]
        assert (shown["waiting"], shown["put_aside"], notes_on(gateway, "a")) == (0, 0, [])


async def test_a_client_that_leaves_while_its_answer_is_aside(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    async with gateway_of(places(model), {"a": sized()}, limits(), xllamacpp, tmp_path) as (gateway, _):
        engine = engine_of(gateway, "a")
        task, run = await put_aside_by(gateway, asked("a", stream=True))
        while not engine.requests.queue:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert (engine.in_flight, engine.requests.places.flex) == (1, 0)
        task.cancel()
        await asyncio.wait({task})
        assert (engine.in_flight, engine.requests.places.flex, len(engine.requests.queue)) == (1, 0, 0)
        run.close()
        assert engine.in_flight == 0
        assert await whole(gateway, flex("a", "Hello."))
        await forgotten(engine)
        assert list((tmp_path / "prompts").glob("aside-*")) == []


async def test_an_answer_that_has_waited_for_long_is_finished(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    """It goes on beside the request that had its place, and gives way no more."""
    limit = limits(flex_max_wait_seconds=0.2)
    async with gateway_of(places(model), {"a": sized()}, limit, xllamacpp, tmp_path) as (gateway, _):
        engine = engine_of(gateway, "a")
        alone = await whole(gateway, flex("a", "Hello."))
        task, run = await put_aside_by(gateway, asked("a", max_tokens=400, stream=True))
        with run:
            while engine.requests.places.flex == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert (engine.in_flight, engine.requests.places.put_asides) == (2, 1)
        # On a busy machine the engine may have ended its answer already.
        if (reply := await in_flight(engine, 6, task)) and reply.gives_way:
            await whole(gateway, asked("a", max_tokens=2))
        assert engine.requests.places.put_asides == 1
        assert await task == alone


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": 3, "temperature": 1.0},
        {"logprobs": True},
        {"response_format": {"type": "json_object"}},
        {"cache_prompt": False},
        {"mirostat": 2},
        {"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "look", "parameters": {}}}]},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_what_cannot_go_on_from_its_tokens_is_finished(
    fields: dict[str, Any], model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    async with gateway_of(places(model), {"a": sized()}, limits(), xllamacpp, tmp_path) as (gateway, _):
        with await gateway.chat(flex("a", "Hello.", stream=True, **fields)) as run:
            await run.payloads()
            assert run.reply.flexible is None
            assert engine_of(gateway, "a").requests.places.flexible == {}


async def test_nothing_is_put_aside_where_nothing_is_saved(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    async with gateway_of(places(model), {"a": sized()}, limits(), xllamacpp, tmp_path) as (gateway, _):
        gateway.residency.prompts = None
        with await gateway.chat(flex("a", "Hello.", stream=True)) as run:
            await run.payloads()
            assert run.reply.flexible is None


async def test_a_call_is_finished_first(model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path) -> None:
    """Its grammar has begun, and can't begin again in its middle."""
    tool = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    more = {"tools": [{"type": "function", "function": tool}], "ignore_eos": False}
    async with gateway_of(places(model), {"a": sized()}, limits(), xllamacpp, tmp_path) as (gateway, _):
        engine = engine_of(gateway, "a")
        text = "What is the weather in Oslo?"
        with await gateway.chat(flex("a", text, **more)) as run:
            alone = await run.whole()
        assert json.loads(alone)["choices"][0]["message"]["tool_calls"]
        while True:
            task = asyncio.create_task(whole_body(gateway, flex("a", text, **more)))
            if reply := await in_flight(engine, TOKENS, task):
                break
        assert not reply.gives_way
        assert await whole(gateway, asked("a", max_tokens=2))
        assert engine.requests.places.put_asides == 0
        assert calls(await task) == calls(alone)


async def test_without_its_file_an_answer_goes_on(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path
) -> None:
    """The engine reads the tokens again: with these, it says the same."""
    async with gateway_of(places(model), {"a": sized()}, limits(), xllamacpp, tmp_path) as (gateway, _):
        engine = engine_of(gateway, "a")
        alone = await whole(gateway, flex("a", "Hello."))
        task, run = await put_aside_by(gateway, asked("a", max_tokens=400, stream=True))
        while not engine.requests.queue:  # noqa: ASYNC110
            await asyncio.sleep(0)
        (file,) = (tmp_path / "prompts").glob("aside-*")
        file.write_bytes(file.read_bytes()[:-1])
        run.close()
        _, reason, counts = await task
        assert (reason, counts) == alone[1:]


@pytest.mark.parametrize(
    ("ids", "told", "held", "expected"),
    [
        ([], 0, [1, 2], []),
        ([1, 2], 2, [1, 2, 3], [1, 2]),
        ([1, 2], 2, [1], [1, 2]),
        ([1, 2], 2, None, [1, 2]),
        ([3, 6], 6, [1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6]),
        ([3, 6], 6, [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6]),
        ([3, 6], 6, None, None),
        ([3, 6], 6, [1, 2, 3, 4, 5, 7], None),
        ([3, 6], 6, [1, 2], None),
        ([1, 2], 4, [1, 2, 3, 4], [1, 2]),
    ],
    ids=[
        "nothing yet",
        "a token each, and more since",
        "the last one is not in the cache",
        "no file",
        "characters of several tokens",
        "the last of a character",
        "characters, and no file",
        "another answer",
        "too few",
        "a draft of which two have come",
    ],
)
def test_written(ids: list[int], told: int, held: list[int] | None, expected: list[int] | None) -> None:
    assert written(ids, told, held) == expected


@pytest.mark.parametrize(
    ("running", "needed", "expected"),
    [
        ([], 1, []),
        ([Running("a"), Running("b")], 0, []),
        ([Running("a", 5), Running("b", 1), Running("c", 3)], 1, ["b"]),
        ([Running("a", 5), Running("b", 1), Running("c", 3)], 9, ["b", "c", "a"]),
        ([Running("a", 1, gives_way=False), Running("b", 2)], 2, ["b"]),
        ([Running("a", 600), Running("b", 599.9)], 2, ["b"]),
    ],
    ids=["nobody", "no need", "who has waited least", "all", "who can", "who has not waited for too long"],
)
def test_who_is_put_aside(running: list[Running], needed: int, expected: list[str]) -> None:
    assert put_aside(running, needed, 600.0) == expected


@pytest.mark.parametrize("stream", [False, True])
async def test_a_flex_answer_names_its_stop_sequence_on_anthropic_s_api(
    model: Model, xllamacpp: Callable[[], Machine], tmp_path: Path, stream: bool
) -> None:
    async with gateway_of(places(model), {"a": sized()}, limits(), xllamacpp, tmp_path) as (gateway, _):
        for stops, expected in ((["can I"], "can I"), (["zzz", "How"], "How"), (["zzz"], None)):
            body = {
                **{"model": "a", "messages": [{"role": "user", "content": "Hello"}], "temperature": 0},
                **{"max_tokens": 40, "service_tier": "flex", "stop": stops, "stream": stream},
            }
            with await gateway.chat(ChatRequest.parse(json.dumps(body).encode(), "messages")) as run:
                assert isinstance(run.reply, FlexReply)
                chunks = [json.loads(chunk) for chunk in (await rest(run) if stream else [await run.whole()])]
            ends = [choice for one in chunks for choice in one["choices"] if choice["finish_reason"]]
            assert [(end["finish_reason"], end.get("stop_reason")) for end in ends] == [("stop", expected)]

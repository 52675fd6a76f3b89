"""Retry stands above the contract: what is retried, how long it waits, when it gives up."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import CATEGORIES, GatewayError, ProviderInvalidRequest, ProviderRateLimit, ProviderUnavailable
from gateway.provider import (
    AssistantMessage,
    OpenAIProvider,
    Response,
    Retry,
    RuntimeConfig,
    StructuredOutputInvalid,
    Usage,
    UserMessage,
    full_jitter,
    is_transient,
    retry,
)
from gateway.provider.retry import CAP

from .server import completion

TRANSIENT = {"provider_unavailable", "provider_rate_limit", "provider_model_not_loaded"}
GOOD = Response(AssistantMessage("ok"), "stop", Usage(), {}, None)
DEGRADED = replace(GOOD, finish_reason="error")


class Script:
    """Gives one outcome after the other, and keeps how long was slept between them."""

    def __init__(self, *outcomes: Response[None] | BaseException) -> None:
        self.left = list(outcomes)
        self.slept: list[float] = []

    async def call(self) -> Response[None]:
        outcome = self.left.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def run(self, max_attempts: int = 3) -> Response[None]:
        return await retry(self.call, max_attempts=max_attempts, backoff=lambda n: n + 1.0, sleep=self.sleep)


@pytest.mark.parametrize("kind", CATEGORIES.values(), ids=CATEGORIES)
async def test_the_transient_categories_and_no_others_are_retried(kind: type[GatewayError]) -> None:
    script = Script(kind("once"), GOOD)
    assert is_transient(kind("x")) is (kind.category in TRANSIENT)
    if kind.category in TRANSIENT:
        assert await script.run() == GOOD
        assert script.slept == [1.0]
    else:
        with pytest.raises(kind):
            await script.run()
        assert script.slept == []


async def test_the_last_error_is_the_one_that_is_raised() -> None:
    script = Script(ProviderUnavailable("first"), ProviderUnavailable("second"), ProviderUnavailable("third"))
    with pytest.raises(ProviderUnavailable, match="third"):
        await script.run()
    assert (script.slept, script.left) == ([1.0, 2.0], [])


async def test_a_degraded_answer_is_tried_again_and_then_returned() -> None:
    script = Script(DEGRADED, GOOD)
    assert await script.run() == GOOD
    script = Script(DEGRADED, DEGRADED)
    assert await script.run(2) == DEGRADED


@pytest.mark.parametrize(
    ("asked", "slept"),
    [
        pytest.param(0.2, [1.0], id="shorter than the back-off"),
        pytest.param(7.0, [7.0], id="longer"),
        pytest.param(30.0, [30.0], id="as long as is waited at all"),
    ],
)
async def test_the_servers_own_wait_is_kept(asked: float, slept: list[float]) -> None:
    script = Script(ProviderRateLimit("busy", retry_after=asked), GOOD)
    assert await script.run() == GOOD
    assert script.slept == slept


async def test_a_wait_beyond_the_bound_ends_the_attempts() -> None:
    script = Script(ProviderRateLimit("tomorrow", retry_after=86_400), GOOD)
    with pytest.raises(ProviderRateLimit, match="tomorrow"):
        await script.run()
    assert script.slept == []


@pytest.mark.parametrize("outcome", [asyncio.CancelledError(), KeyboardInterrupt(), ValueError("a bug")])
async def test_cancellation_and_bugs_are_never_retried(outcome: BaseException) -> None:
    script = Script(outcome, GOOD)
    with pytest.raises(type(outcome)):
        await script.run()
    assert script.left == [GOOD]


async def test_cancellation_ends_the_wait() -> None:
    waiting = asyncio.Event()

    async def fail() -> None:
        waiting.set()
        raise ProviderUnavailable("down")

    task = asyncio.create_task(retry(fail, backoff=lambda _: 1e6))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_at_least_one_attempt() -> None:
    assert await Script(GOOD).run(1) == GOOD
    with pytest.raises(ValueError, match="max_attempts"):
        await Script().run(0)


@given(st.integers(0, 10_000), st.floats(0.001, 10), st.floats(0.001, 100))
def test_jitter_stays_within_its_bounds(attempt: int, base: float, cap: float) -> None:
    assert 0 <= full_jitter(attempt, base, cap) <= min(cap, base * 2.0 ** min(attempt, 1000))


@pytest.mark.parametrize(("attempt", "bound"), [(0, 1.0), (1, 2.0), (4, 16.0), (5, CAP), (50, CAP)])
def test_jitter_uses_the_whole_range(attempt: int, bound: float) -> None:
    waits = [full_jitter(attempt) for _ in range(400)]
    assert min(waits) < bound / 4
    assert bound * 3 / 4 < max(waits) <= bound


NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
DOWN = httpx.Response(503, json={"error": {"message": "down"}})
HI = [UserMessage("hi")]


class Model:
    """A server that gives one answer after the other, and keeps the requests."""

    def __init__(self, *answers: httpx.Response | str) -> None:
        self.left = [httpx.Response(200, json=completion(a)) if isinstance(a, str) else a for a in answers]
        self.bodies: list[Any] = []
        self.slept: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.bodies.append(json.loads(request.content))
        return self.left.pop(0)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def ask(self, policy: Retry, config: RuntimeConfig | None = None, **options: Any) -> Any:
        async with httpx.AsyncClient(transport=httpx.MockTransport(self)) as client:
            provider = OpenAIProvider("http://server", "m", http_client=client)
            return await provider.complete(HI, config=config, retry=replace(policy, sleep=self.sleep), **options)


async def test_a_call_retries_itself() -> None:
    model = Model(DOWN, DOWN, "ok")
    told: list[tuple[int, object]] = []
    policy = Retry(max_attempts=3, backoff=lambda n: n + 1.0, on_retry=lambda n, why: told.append((n, why)))
    assert (await model.ask(policy)).message.text == "ok"
    assert model.slept == [1.0, 2.0]
    assert [(number, type(why)) for number, why in told] == [(0, ProviderUnavailable), (1, ProviderUnavailable)]


async def test_each_attempt_may_have_its_own_settings() -> None:
    model = Model(DOWN, DOWN, DOWN, "ok")
    schedule = [RuntimeConfig(temperature=0.5, extra={"top_k": 1}), RuntimeConfig(top_p=0.5)]
    base = RuntimeConfig(temperature=0.0, extra={"min_p": 0})
    await model.ask(Retry(per_attempt_override=schedule), base)
    fields = ("temperature", "top_p", "top_k", "min_p")
    assert [[body.get(name) for name in fields] for body in model.bodies] == [
        [0.0, None, None, 0],
        [0.5, None, 1, 0],
        [0.0, 0.5, None, 0],
        [0.0, 0.5, None, 0],
    ]


async def test_a_reask_shows_the_model_its_answer() -> None:
    model = Model('{"n": "one"}', DOWN, "1", '{"n": 1}')
    response = await model.ask(Retry(reask=lambda e: f"Wrong: {e.output_content}"), response_schema=NUMBER)
    assert response.parsed == {"n": 1}
    said = [[m["content"] for m in body["messages"][1:]] for body in model.bodies]
    first = ['{"n": "one"}', 'Wrong: {"n": "one"}']
    assert said == [[], first, first, [*first, "1", "Wrong: 1"]]


async def test_an_answer_without_words_cannot_be_shown_again() -> None:
    cut = completion("")
    cut["choices"][0]["finish_reason"] = "length"
    model = Model(httpx.Response(200, json=cut))
    with pytest.raises(StructuredOutputInvalid):
        await model.ask(Retry(reask=lambda _: "again"), response_schema=NUMBER)
    assert len(model.bodies) == 1


async def test_what_the_builder_raises_reaches_the_caller() -> None:
    model = Model("{}")
    with pytest.raises(ZeroDivisionError):
        await model.ask(Retry(reask=lambda _: str(1 // 0)), response_schema=NUMBER)


async def test_only_the_opening_of_a_stream_is_retried() -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "ok"}, "finish_reason": "stop"}]}
    text = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
    model = Model(DOWN, httpx.Response(200, headers={"content-type": "text/event-stream"}, text=text))
    async with await model.ask(Retry(), stream=True) as stream:
        assert (await stream.response()).message.text == "ok"
    with pytest.raises(ProviderInvalidRequest, match="reask"):
        await model.ask(Retry(reask=lambda _: ""), stream=True)


def test_there_is_at_least_one_attempt() -> None:
    with pytest.raises(ValueError, match="max_attempts"):
        Retry(max_attempts=0)

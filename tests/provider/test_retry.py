"""Retry stands above the contract: what is retried, how long it waits, when it gives up."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import CATEGORIES, GatewayError, ProviderRateLimit, ProviderUnavailable
from gateway.provider import AssistantMessage, Response, Usage, full_jitter, is_transient, retry
from gateway.provider.retry import CAP

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

"""Retries and fallbacks: which model is asked, how often, and after what pause. The routes are scripts."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, cast

import pytest

from gateway.config import Model
from gateway.core import fallbacks
from gateway.core.fallbacks import open_with_fallbacks
from gateway.core.route import Route
from gateway.errors import (
    Backoff,
    GatewayError,
    ProviderInvalidRequest,
    ProviderRateLimit,
    ProviderUnavailable,
    WeightsMissing,
)
from gateway.wire.chat import ChatRequest

REQUEST = b'{"messages": [{"role": "user", "content": "Hi"}]}'
BUSY, DOWN = ProviderRateLimit("busy", retry_after=3), ProviderUnavailable("down")
BAD, MISSING = ProviderInvalidRequest("bad"), WeightsMissing("m: no weights")


class Said:
    """A run that begins, or fails to."""

    def __init__(self, name: str, error: GatewayError | None) -> None:
        self.name = name
        self.left: BaseException | None = None
        self._error = error

    async def begin(self) -> None:
        if self._error is not None:
            raise self._error

    def __exit__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self.left = error


class Script:
    """Routes by name, with the error of each attempt; None: it answers. pauses: seconds between attempts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **attempts: list[GatewayError | None]) -> None:
        self.asked: list[str] = []
        self.pauses: list[float] = []
        self.runs: list[Said] = []
        self._attempts = attempts
        monkeypatch.setattr(asyncio, "sleep", self._sleep)
        monkeypatch.setattr(fallbacks, "RETRY", Backoff(0.25, 5.0, jitter=0.0))

    async def _sleep(self, seconds: float) -> None:
        self.asked.append("pause")
        self.pauses.append(seconds)

    last: ChatRequest
    """As the last model was asked."""

    async def open(self, retries: int, **fields: Any) -> Any:
        model = Model(name="m", runtime="echo", retries=retries, fallbacks=("n", "o"))
        self.request = ChatRequest.parse(REQUEST)
        return await open_with_fallbacks(model, self._route_of, self.request)

    def _route_of(self, name: str) -> Route | None:
        if name not in self._attempts:
            return None

        class Asked:
            async def open_in_turn(_, request: ChatRequest) -> Any:
                assert request.fields is self.request.fields
                self.last = request
                self.asked.append(name)
                self.runs.append(run := Said(name, self._attempts[name].pop(0)))
                return run

        return cast(Route, Asked())


async def test_an_answer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, m=[None])
    assert (await script.open(2)).name == "m"
    assert script.asked == ["m"]
    assert script.last.fallback is None


async def test_there_is_a_pause_between_attempts_and_none_before_a_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, m=[DOWN] * 3, n=[DOWN, DOWN, None])
    assert (await script.open(2)).name == "n"
    assert script.asked == ["m", "pause", "m", "pause", "m", "n", "pause", "n", "pause", "n"]
    assert script.pauses == [0.25, 0.5, 0.25, 0.5]
    assert script.last.fallback == "n"
    assert [run.left for run in script.runs] == [DOWN] * 5 + [None]


async def test_an_engine_may_ask_for_a_longer_pause_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    for asked, pause in ((3, 3.0), (60, 5.0)):
        script = Script(monkeypatch, m=[ProviderRateLimit("busy", retry_after=asked), None])
        await script.open(1)
        assert script.pauses == [pause]


async def test_without_retries_each_model_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, m=[DOWN], n=[BUSY], o=[DOWN])
    with pytest.raises(ProviderUnavailable) as failed:
        await script.open(0)
    assert failed.value is DOWN
    assert script.asked == ["m", "n", "o"]


async def test_missing_weights_are_not_tried_again_but_another_model_is(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, m=[MISSING], n=[None])
    assert (await script.open(2)).name == "n"
    assert script.asked == ["m", "n"]


async def test_the_first_lasting_error_is_raised_unless_a_transient_one_came(monkeypatch: pytest.MonkeyPatch) -> None:
    other = WeightsMissing("n: no weights")
    script = Script(monkeypatch, m=[MISSING], n=[other])
    with pytest.raises(WeightsMissing) as failed:
        await script.open(2)
    assert failed.value is MISSING
    script = Script(monkeypatch, m=[MISSING], n=[DOWN], o=[other])
    with pytest.raises(ProviderUnavailable):
        await script.open(0)


async def test_what_no_model_would_answer_is_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, m=[BAD], n=[None])
    with pytest.raises(ProviderInvalidRequest):
        await script.open(2)
    assert script.asked == ["m"]


async def test_a_model_that_is_gone_meanwhile_leaves_its_fallbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, o=[None])
    assert (await script.open(2)).name == "o"
    assert script.asked == ["o"]

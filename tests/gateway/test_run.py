"""A run asks again, once, when its engine goes away before the client has anything."""

from __future__ import annotations

import json
from time import monotonic
from typing import cast

import pytest
from msgspec.structs import replace

from gateway.answer.normalize import Answer
from gateway.backends import Backend
from gateway.config import Model
from gateway.core.checked import CheckedRun
from gateway.core.run import Run
from gateway.core.sender import Accepted, Sender
from gateway.engines import Engine
from gateway.errors import GatewayError, ProviderInvalidRequest, ProviderUnavailable
from gateway.observe.request_log import RequestLog
from gateway.request.checks import Check, Enforced
from gateway.request.constraints import Constraint
from gateway.schema.checker import compiled
from gateway.schema.pool import Pool, Threads
from gateway.upstream import EngineGone
from gateway.wire.chat import ChatRequest
from normalizers import registry
from tests.gateway.double import chunk
from tests.gateway.scripted import GONE, Scripted, good, text

MODEL = Model(name="m", runtime="echo")
SILENT = ProviderUnavailable("the engine sent nothing", status=503)


class CountedEngine:
    """What a run uses of an engine, and of its `requests`."""

    def __init__(self) -> None:
        self.requests = self
        self.in_flight = 0
        self.losses = 0

    def lost(self) -> None:
        self.losses += 1

    def leave(self, rank: int = 1) -> None:
        self.in_flight -= 1


class Route:
    """Answers each attempt with the next reply."""

    def __init__(self, *replies: Scripted, ours: bool = True, format: str = "native_json") -> None:
        self.model = MODEL
        self.format = format
        self.fake = CountedEngine()
        self.engine = cast("Engine", self.fake) if ours else None
        self.schemas = Threads(Pool())
        self.sender = Sender(MODEL, RequestLog(), self.schemas)
        self.booked: list[Run] = []
        self.replies = list(replies)

    async def ask(self, request: ChatRequest) -> Accepted:
        self.fake.in_flight += 1
        reply = self.replies.pop(0)
        return Accepted(reply, Answer(request, registry.get(self.format)), Backend(MODEL, None), None)

    def ended(self, run: Run) -> None:
        self.booked.append(run)

    def request(self, *, stream: bool) -> ChatRequest:
        tools = [{"type": "function", "function": {"name": "f"}}]
        body = {"messages": [{"role": "user", "content": "Hi"}], "stream": stream, "tools": tools}
        return ChatRequest.parse(json.dumps(body).encode())

    async def run(self, *, stream: bool) -> Run:
        request = self.request(stream=stream)
        return Run(self, request, await self.ask(request), 0.0, replayed=False)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_engine_that_goes_after_its_head_is_asked_once_more(stream: bool) -> None:
    lost = Scripted(error=GONE)
    route = Route(lost, good(stream))
    with await route.run(stream=stream) as run:
        assert await text(run, stream) == "Hello"
        assert run.outcome == "ok"
        assert lost.closed
        assert (route.fake.losses, route.fake.in_flight) == (1, 1)
    assert route.fake.in_flight == 0
    assert route.booked == [run]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("replies", "ours", "error"),
    [
        pytest.param((GONE, GONE), True, GONE, id="it goes twice"),
        pytest.param((SILENT, None), True, SILENT, id="it was silent, and may still work on it"),
        pytest.param((GONE, None), False, GONE, id="a server of somebody else's"),
    ],
)
async def test_otherwise_the_error_stands(
    stream: bool, replies: tuple[Exception | None, ...], ours: bool, error: Exception
) -> None:
    route = Route(*(good(stream) if each is None else Scripted(error=each) for each in replies), ours=ours)
    with await route.run(stream=stream) as run, pytest.raises(ProviderUnavailable) as caught:
        await text(run, stream)
    assert caught.value is error
    assert run.outcome == "provider_unavailable"


async def test_a_client_that_has_a_part_is_told_of_the_end() -> None:
    route = Route(Scripted(json.dumps(chunk("Hel")).encode(), error=GONE), good(True))
    with await route.run(stream=True) as run:
        (first,) = await run.payloads()
        assert json.loads(first)["choices"][0]["delta"]["content"] == "Hel"
        with pytest.raises(EngineGone):
            await run.payloads()
    assert len(route.replies) == 1, "never asked again"


async def test_a_run_ends_once() -> None:
    route = Route(good(False))
    with await route.run(stream=False) as run:
        await run.whole()
        run.close()
    run.close()
    assert (len(route.booked), route.fake.in_flight) == (1, 0)


@pytest.mark.parametrize("read", [False, True], ids=["before", "after"])
async def test_what_fails_while_an_answer_is_sent_is_its_outcome(read: bool) -> None:
    route = Route(good(False))
    run = await route.run(stream=False)

    async def send() -> None:
        with run:
            if read:
                await run.whole()
            raise ProviderInvalidRequest("the client's own fault")

    with pytest.raises(ProviderInvalidRequest):
        await send()
    assert run.outcome == "provider_invalid_request"


async def test_an_outcome_that_is_an_error_stays() -> None:
    route = Route(Scripted(error=SILENT))
    run = await route.run(stream=False)

    async def send() -> None:
        with run:
            with pytest.raises(ProviderUnavailable):
                await run.whole()
            raise ProviderInvalidRequest("something else")

    with pytest.raises(ProviderInvalidRequest):
        await send()
    assert run.outcome == "provider_unavailable"


@pytest.mark.parametrize("begun", [False, True], ids=["read", "begun before"])
async def test_when_the_first_payload_came(begun: bool) -> None:
    """For the request log: 0 until then, and the first moment ever after."""
    route = Route(good(True))
    with await route.run(stream=True) as run:
        before = monotonic()
        assert run.first == 0.0
        if begun:
            await run.begin()
        assert await run.payloads()
        first = run.first
        assert before <= first <= monotonic()
        assert await text(run, True) == ""
        assert run.first == first


async def test_what_begin_has_read_can_still_be_asked_again_elsewhere() -> None:
    route = Route(good(True))
    with await route.run(stream=True) as run:
        await run.begin()
        assert await text(run, True) == "Hello"


async def test_a_client_that_leaves_the_second_attempt_left_and_nothing_failed() -> None:
    lost = Scripted(error=GONE)
    route = Route(lost, good(True))
    with await route.run(stream=True) as run:
        assert await run.payloads()
        assert run.outcome == "client_left"
    assert route.booked[0].outcome == "client_left"


async def test_an_error_that_came_behind_held_text_is_the_outcome_of_a_client_that_leaves() -> None:
    """The client got the text that was held back, and never read the error."""
    begun, error = json.dumps(chunk("Hi <tool_")).encode(), b'{"error": {"message": "slot failed", "code": 500}}'
    route = Route(Scripted(begun, error), format="hermes")
    with await route.run(stream=True) as run:
        said = [json.loads(payload) for _ in range(2) for payload in await run.payloads()]
    assert "".join(each["choices"][0]["delta"]["content"] for each in said) == "Hi <tool_"
    assert run.outcome == "internal_error"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_error_in_the_body_is_the_outcome(stream: bool) -> None:
    route = Route(Scripted(b'{"error": {"message": "slot failed", "code": 500}}'))
    with await route.run(stream=stream) as run, pytest.raises(GatewayError):
        await text(run, stream)
    assert run.outcome == "internal_error"
    assert route.booked[0].outcome == "internal_error"


class Enforcing(Route):
    """The first attempt is to be checked; the second engine takes a grammar."""

    async def ask(self, request: ChatRequest) -> Accepted:
        accepted = await super().ask(request)
        check = Check(Constraint("json"), None, compiled)
        return replace(accepted, enforced=Enforced("checked", check) if self.replies else Enforced("grammar"))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_what_the_second_engine_enforces_is_not_checked(stream: bool) -> None:
    route = Enforcing(Scripted(error=GONE), good(stream))
    request = route.request(stream=stream)
    with CheckedRun(route, request, await route.ask(request), 0.0, replayed=False) as run:
        assert await text(run, stream) == "Hello", "no JSON, and no reason to ask again"
        assert run.enforced_by == "grammar"

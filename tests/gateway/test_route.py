"""What a route does with an engine of ours, for requests that aren't chats and at the end of a route."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import Raw
from msgspec.structs import replace

from gateway.backends import Backend
from gateway.backends.about import About
from gateway.config import Config, Model, Residence
from gateway.core import Gateway, Route
from gateway.core.fallbacks import open_with_fallbacks
from gateway.engines import Engine
from gateway.errors import ProviderModelNotLoaded
from gateway.observe.request_log import OK, UNSETTLED, RequestLog
from gateway.schema.pool import Pool, Threads
from gateway.upstream import EngineGone
from gateway.wire.chat import ChatRequest
from tests.gateway.double import completion
from tests.gateway.scripted import GONE, Scripted, good, text
from tests.patience import PATIENCE

MODEL = Model(name="m", runtime="echo")


class Counted(Backend):
    """A backend that says that it isn't ready, and how often it was closed."""

    closed = 0

    async def ready(self) -> None:
        raise ProviderModelNotLoaded("still loads")

    async def aclose(self) -> None:
        self.closed += 1


class CountedEngine:
    """What a route uses of a running engine, and of its `requests`, `shutdown` and `startup`."""

    def __init__(self) -> None:
        self.requests = self.shutdown = self.startup = self
        self.backend: Counted | None = Counted(MODEL, None)
        self.accepting: Counted | None = None
        self.in_flight = self.losses = self.retired = self.joined = 0

    async def join(self, key: object = None, rank: int = 1) -> Counted:
        assert self.backend is not None
        self.joined += 1
        self.in_flight += 1
        return self.backend

    def enter(self, rank: int) -> None:
        self.in_flight += 1

    def leave(self, rank: int = 1) -> None:
        self.in_flight -= 1

    def lost(self) -> None:
        self.losses += 1

    def reconfigure(self, model: Model) -> Counted | None:
        before, self.backend = self.backend, Counted(model, None)
        return before

    async def retire(self) -> None:
        self.retired += 1

    async def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


def asking(**fields: Any) -> ChatRequest:
    return ChatRequest.parse(json.dumps({"messages": [{"role": "user", "content": "Hi"}], **fields}).encode())


def route(engine: CountedEngine) -> Route:
    return Route(MODEL, RequestLog(), Threads(Pool()), cast("Engine", engine))


async def test_an_engine_that_goes_during_any_request_counts_as_lost() -> None:
    engine = CountedEngine()
    used = route(engine)

    async def request() -> None:
        async with used.use():
            assert (engine.in_flight, used.requests.count) == (1, 1)
            raise EngineGone("it went away", status=502)

    with pytest.raises(EngineGone):
        await request()
    assert (engine.losses, engine.in_flight, used.requests.count) == (1, 0, 0)
    async with used.use():
        pass
    assert (engine.losses, engine.in_flight, used.requests.count) == (1, 0, 0)


async def test_the_backend_of_a_running_engine_is_at_hand_and_another_is_started_for_nobody() -> None:
    engine = CountedEngine()
    engine.accepting = engine.backend
    assert await route(engine).server.backend() is engine.backend
    assert engine.joined == 0
    engine.accepting = None
    assert await route(engine).server.backend() is engine.backend
    assert (engine.joined, engine.in_flight) == (1, 0)


class Lost(Counted):
    """Its engine goes before the first answer, and again within the second."""

    opened = 0

    async def open(self, request: ChatRequest, fields: dict[str, Raw]) -> Scripted:
        self.opened += 1
        if self.opened == 1:
            raise GONE
        return Scripted(error=GONE)


@pytest.mark.parametrize("tier", [None, "flex"], ids=["ordinary", "flex"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_engine_is_asked_once_more_and_no_third_time(stream: bool, tier: str | None) -> None:
    engine = CountedEngine()
    engine.backend = backend = Lost(MODEL, None)
    used = route(engine)
    with await used.open(asking(stream=stream, service_tier=tier)) as run, pytest.raises(EngineGone):
        await (run.payloads() if stream else run.whole())
    assert (backend.opened, engine.losses) == (2, 2)
    assert (used.requests.count, engine.in_flight) == (0, 0)


class LostLater(Lost):
    """Its engine goes after it has accepted the request; the next one answers."""

    async def open(self, request: ChatRequest, fields: dict[str, Raw]) -> Scripted:
        self.opened += 1
        return good(request.stream) if self.opened == 2 else Scripted(error=GONE)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_engine_that_goes_after_its_head_is_asked_once_more(stream: bool) -> None:
    engine = CountedEngine()
    engine.backend = backend = LostLater(MODEL, None)
    used = route(engine)
    with await used.open(asking(stream=stream)) as run:
        assert await text(run, stream) == "Hello"
    assert (backend.opened, engine.losses, engine.in_flight) == (2, 1, 0)


@pytest.mark.parametrize("tier", ["default", "flex"])
async def test_a_refused_request_says_nothing_about_its_engine(tier: str) -> None:
    engine = CountedEngine()
    engine.backend = Refusing(MODEL, None)
    used = route(engine)
    with pytest.raises(ProviderModelNotLoaded):
        await used.open(asking(service_tier=tier))
    assert (used.requests.count, used.requests.waiting, engine.in_flight, engine.losses) == (0, {}, 0, 0)


class Unclosable(Counted):
    async def aclose(self) -> None:
        raise ZeroDivisionError("its own bug")


@pytest.mark.parametrize(
    ("kind", "said"),
    [(Counted, ""), (Unclosable, "the former engine of model m did not end: its own bug")],
    ids=["it ends", "it fails"],
)
async def test_only_what_fails_while_a_route_leaves_is_logged(
    kind: type[Counted], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(source=Path("config.yaml"), active_model="m", models={"m": MODEL})
    async with Gateway(config) as gateway:
        gateway.routes["m"].server.external = kind(MODEL, None)
        gateway.apply(replace(config, active_model="n", models={"n": replace(MODEL, name="n")}))
        while gateway.leaving:
            await asyncio.wait([*gateway.leaving])
    assert [record.getMessage() for record in caplog.records] == ([said] if said else [])


async def test_a_replaced_route_closes_its_old_connections_and_leaves_the_engine() -> None:
    engine = CountedEngine()
    old = route(engine)
    before = engine.backend
    assert before is not None
    assert old.pass_on(replace(MODEL, defaults={"seed": 1})) is old.engine
    new = route(engine)
    await old.retire(0)
    assert (before.closed, engine.retired) == (1, 0)
    assert engine.backend is not None
    assert engine.backend.closed == 0
    await new.retire(0)
    assert engine.retired == 1


async def test_ready_asks_the_engine_that_runs() -> None:
    engine = CountedEngine()
    async with Gateway(Config(source=Path("config.yaml"), active_model="m", models={"m": MODEL})) as gateway:
        gateway.routes = {"m": route(engine)}
        with pytest.raises(ProviderModelNotLoaded):
            await gateway.ready("m")
        assert (engine.joined, engine.in_flight) == (1, 0)


class Refusing(Counted):
    async def open(self, request: ChatRequest, fields: dict[str, Raw]) -> Scripted:
        raise ProviderModelNotLoaded("still loads")


async def test_a_request_that_no_engine_takes_is_over() -> None:
    engine = CountedEngine()
    engine.backend = Refusing(MODEL, None)
    used = route(engine)
    with pytest.raises(ProviderModelNotLoaded):
        await used.open(ChatRequest.parse(b'{"messages": [{"role": "user", "content": "Hi"}]}'))
    assert (used.requests.count, engine.in_flight, engine.losses) == (0, 0, 0)
    async with asyncio.timeout(PATIENCE):
        await used.retire(PATIENCE)


class Answering(Counted):
    """Answers with a call as a model writes it."""

    async def open(self, request: ChatRequest, fields: dict[str, Raw]) -> Scripted:
        return Scripted(
            json.dumps(completion('<tool_call>{"name": "f", "arguments": {"a": True,}}</tool_call>')).encode()
        )


@pytest.mark.parametrize(
    ("said", "healed"),
    [
        pytest.param([{"role": "user", "content": "Hi"}], {}, id="the answer alone"),
        pytest.param([{"role": "tool", "content": "noon"}], {"orphan_results": 1}, id="and the past"),
    ],
)
async def test_repairs_are_booked(said: list[dict[str, str]], healed: dict[str, int]) -> None:
    log = RequestLog()
    model = replace(MODEL, tool_call_format="hermes")
    engine = CountedEngine()
    engine.backend = Answering(model, None)
    used = Route(model, log, Threads(Pool()), cast("Engine", engine))
    body = {"messages": said, "tools": [{"type": "function", "function": {"name": "f"}}]}
    with await used.open(ChatRequest.parse(json.dumps(body).encode())) as run:
        await run.whole()
    (row,) = log.rows
    assert row[8] is not None
    assert (row[8].mended, dict(row[8].healed), row[8].warnings) == ("lexical", healed, [])


class Telling(Answering):
    """Says what chat template its model has."""

    template = ""

    async def about(self) -> About:
        return About(self.template)


class Hermes(Telling):
    template = "<tool_call>"


class Mistral(Telling):
    template = "[TOOL_CALLS]"


async def test_a_process_with_another_model_is_asked_anew() -> None:
    """As after `ctxgate pull`, or where the user's own server stands at the model's port."""
    engine, model = CountedEngine(), replace(MODEL, tool_call_format="auto")
    used = Route(model, RequestLog(), Threads(Pool()), cast("Engine", engine))
    for kind, format in ((Hermes, "hermes"), (Mistral, "mistral"), (Telling, "auto")):
        engine.backend = kind(model, None)
        for asked in (asking(), asking(tools=[{"type": "function", "function": {"name": "f"}}])):
            with await used.open(asked) as run:
                await run.whole()
            assert used.sender.capability.reader.name == format


async def test_books_that_nobody_reads_stay_small() -> None:
    log = RequestLog()
    used = Route(MODEL, log, Threads(Pool()))
    for _ in range(UNSETTLED):
        used.count("embeddings", stream=False).end(OK)
    assert not log.rows
    assert log.stats("m").outcomes[OK] == UNSETTLED


class Loading(Counted):
    """Never gets its model into memory."""

    def __init__(self, model: Model, address: None) -> None:
        super().__init__(model, address)
        self.loading, self.stopped = asyncio.Event(), asyncio.Event()

    async def load(self, keep_alive: float | None = None) -> None:
        self.loading.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped.set()


async def test_what_still_leaves_or_loads_ends_with_the_gateway() -> None:
    """Else a model that is preloaded could start its engine after the gateway has gone."""
    models = {"m": MODEL, "n": replace(MODEL, name="n", residence=Residence(preload=True))}
    config = Config(source=Path("config.yaml"), active_model="m", models=models)
    gateway = Gateway(config)
    gateway.routes["n"].server.external = backend = Loading(MODEL, None)
    former = gateway.routes["m"]
    former.requests.hold(former, 0.0)
    gateway.apply(replace(config, models={**models, "m": replace(MODEL, defaults={"seed": 1})}))
    (leaving,) = gateway.leaving
    async with gateway:
        await backend.loading.wait()
    async with asyncio.timeout(PATIENCE):
        await backend.stopped.wait()
        await asyncio.wait({leaving})
    assert leaving.cancelled()


async def test_one_route_that_can_t_be_closed_keeps_no_other_open() -> None:
    models = {name: replace(MODEL, name=name) for name in ("m", "n")}
    gateway = Gateway(Config(source=Path("config.yaml"), active_model="m", models=models))
    gateway.routes["m"].server.external = Unclosable(MODEL, None)
    gateway.routes["n"].server.external = other = Counted(MODEL, None)
    with pytest.raises(BaseExceptionGroup) as caught:
        await gateway.aclose()
    assert [str(each) for each in caught.value.exceptions] == ["its own bug"]
    assert other.closed == 1


async def test_a_model_that_a_reload_removes_meanwhile() -> None:
    asked = ChatRequest.parse(b'{"messages": [{"role": "user", "content": "Hi"}]}')
    with pytest.raises(ProviderModelNotLoaded, match="model 'm' was just removed"):
        await open_with_fallbacks(replace(MODEL, retries=1, fallbacks=("n",)), lambda name: None, asked)

"""A gateway's side of the cluster, with a real PostgreSQL and doubles as engines; Ray isn't asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.config import Config, Engines, Model
from gateway.core import Gateway
from gateway.errors import ProviderModelNotLoaded, ProviderRateLimit, ProviderUnavailable
from gateway.features.cluster import tables
from gateway.features.cluster.bus import Bus
from gateway.features.cluster.member import Member, Pool
from gateway.features.cluster.member import member as serving
from gateway.features.cluster.settings import Cluster
from gateway.features.cluster.values import EngineRow, Failed, Load, Message, encode, fingerprint
from gateway.services import Services
from gateway.store import Store
from gateway.wire.chat import ChatRequest
from gateway.wire.chat import encode as chat_bytes
from tests.gateway.double import Double, Exchange, answers, chunk, completion, endless
from tests.patience import PATIENCE
from tests.store.postgresql import Server, start
from tests.support.doubles import asked, cut, doubles, gone, request

MODEL = Model(name="m", runtime="llama-cpp-python", path=Path(__file__))


class WithoutRay(Member):
    async def _run_agent(self) -> None:
        await asyncio.Event().wait()


@pytest.fixture(scope="module")
def postgresql() -> Iterator[Server]:
    with start() as server:
        yield server


@pytest.fixture
def url(postgresql: Server) -> str:
    return postgresql.database()


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    opened = await Store.open(url)
    yield opened
    await opened.aclose()


@asynccontextmanager
async def member(url: str, model: Model = MODEL, **engines: Any) -> AsyncIterator[Gateway]:
    config = Config(
        source=Path("config.yaml"),
        active_model="m",
        models={"m": model},
        store=url,
        sections={"cluster": Cluster()},
        engines=Engines(**engines),
    )
    pool = Pool(config)
    async with Gateway(config, pool) as gateway:
        services = Services(gateway)
        this = WithoutRay(services, pool)
        running = asyncio.create_task(this.run())
        try:
            await soon(lambda: pool.shared.key is not None)
            yield gateway
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await this.aclose()
            await services.aclose()


async def publish(store: Store, *found: Double, state: Any = "ready", model: Model = MODEL) -> None:
    launch = fingerprint(model)
    urls = {f"m-{each.address.port}": f"http://127.0.0.1:{each.address.port}" for each in found}
    rows = [EngineRow(id, "m", "n", "h", url, launch, 2, state) for id, url in urls.items()]
    await store.write(lambda connection: tables.replace_engines(connection, rows))


async def soon(true: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not true():  # noqa: ASYNC110  what others tell has no event of ours
            await asyncio.sleep(0.01)


def backend(gateway: Gateway) -> Any:
    return gateway.routes["m"].server.external


async def knows(gateway: Gateway, count: int) -> None:
    await soon(lambda: len(gateway.routes["m"].server.replicas()) == count)


async def test_a_request_waits_for_the_first_engine_and_carries_the_key(store: Store, url: str) -> None:
    async with doubles((answers(),)) as (double,), member(url) as gateway:
        waiting = asyncio.create_task(asked(gateway, request()))
        await soon(lambda: backend(gateway).waiting.all == 1)
        await publish(store, double)
        assert await waiting
        key = await store.read(tables.key)
        (post,) = [each for each in double.requests if each.method == "POST"]
        assert post.headers["authorization"] == f"Bearer {key}"


async def test_the_placer_hears_who_waits_and_who_is_busy(store: Store, url: str) -> None:
    heard: list[Message] = []
    listening = asyncio.Event()

    async def connected() -> None:
        listening.set()

    bus = Bus(url, heard.append, connected)
    task = asyncio.create_task(bus.run())
    await listening.wait()
    try:
        async with doubles((endless,)) as (double,), member(url) as gateway:
            opening = asyncio.ensure_future(gateway.chat(request(stream=True)))
            await soon(lambda: any(isinstance(each, Load) and each.waiting == {"m": 1} for each in heard))
            await publish(store, double)
            run = await opening
            id = f"m-{double.address.port}"
            await soon(lambda: any(isinstance(each, Load) and each.busy.get(id) == 1 for each in heard))
            run.close()
            heard.clear()
            await soon(lambda: any(isinstance(each, Load) and each.busy.get(id, 0) == 0 for each in heard))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_conversation_stays_at_its_engine_whichever_gateway_is_asked(store: Store, url: str) -> None:
    async with doubles((answers(),), (answers(),)) as found, member(url) as one, member(url) as two:
        await publish(store, *found)
        await knows(one, 2)
        await knows(two, 2)
        talks = {who: [{"role": "user", "content": f"I am {who}"}] for who in ("Ada", "Bob", "Eve", "Joe")}
        for gateway in (one, two, one, two):
            for talk in talks.values():
                await asked(gateway, ChatRequest.parse(chat_bytes({"messages": talk})))
                talk += [{"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Go on"}]
            other = two if gateway is one else one
            await soon(lambda: not any(each.news for each in backend(gateway).engines.values()))  # noqa: B023
            prompts = {each for engine in backend(gateway).engines.values() for each in engine.prefixes}
            await soon(
                lambda: len(prompts & {e for each in backend(other).engines.values() for e in each.prefixes}) >= 4  # noqa: B023
            )
        for who in talks:
            at = {index for index, double in enumerate(found) for each in double.requests if who in str(each.body)}
            assert len(at) == 1, who


async def test_others_load_counts(store: Store, url: str) -> None:
    async with doubles((endless,), (endless,)) as found, member(url) as one, member(url) as two:
        await publish(store, *found)
        await knows(one, 2)
        await knows(two, 2)
        first = await one.chat(request("one", stream=True))
        busy = next(each for each in backend(one).engines.values() if each.in_flight)
        await soon(lambda: backend(two).engines[busy.row.id].load == 1)
        second = await two.chat(request("two", stream=True))
        assert [len(double.requests) for double in found].count(0) == 0, "each gateway asks another engine"
        first.close()
        second.close()
        await soon(lambda: backend(two).engines[busy.row.id].load == 0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("end", [gone, cut], ids=["before", "promised"])
async def test_what_has_not_begun_to_answer_is_answered_by_another(
    store: Store, url: str, end: Any, stream: bool
) -> None:
    async def fine(exchange: Exchange) -> None:
        if stream:
            await exchange.start()
            await exchange.event(chunk("second"), chunk(reason="stop"))
            await exchange.end()
        else:
            await exchange.whole(completion("second"))

    async with doubles((end,), (fine,)) as found, member(url) as gateway:
        await publish(store, *found)
        await knows(gateway, 2)
        for number in range(3):
            assert b"second" in b"".join(await asked(gateway, request(f"{number}", stream=stream)))


async def test_what_has_begun_ends_with_an_error(store: Store, url: str) -> None:
    async def breaks(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.event(chunk("Hel"))
        exchange.reset()

    async with doubles((breaks,)) as found, member(url) as gateway:
        await publish(store, *found)
        with await gateway.chat(request(stream=True)) as run:
            assert await run.payloads()
            with pytest.raises(ProviderUnavailable):
                await run.payloads()


async def test_an_engine_whose_node_is_silent_ends_its_answers_once_it_is_known(store: Store, url: str) -> None:
    async def silent(exchange: Exchange) -> None:
        await asyncio.Event().wait()

    async with doubles((silent,), (answers(completion("second")),)) as found, member(url) as gateway:
        await publish(store, found[0])
        await knows(gateway, 1)
        asking = asyncio.create_task(asked(gateway, request()))
        await soon(lambda: any(each.method == "POST" for each in found[0].requests))
        await publish(store, found[1])
        assert b"second" in (await asking)[0]


async def test_a_draining_engine_gets_nothing_new_and_finishes(store: Store, url: str) -> None:
    async with doubles((endless,), (answers(),)) as found, member(url) as gateway:
        await publish(store, found[0])
        run = await gateway.chat(request(stream=True))
        await publish(store, found[0], state="draining")
        await knows(gateway, 0)
        assert await run.payloads(), "its answer goes on"
        waiting = asyncio.create_task(asked(gateway, request()))
        await soon(lambda: backend(gateway).waiting.all == 1)
        run.close()
        await publish(store, found[1])
        assert await waiting


async def test_engines_of_another_launch_are_not_ours(store: Store, url: str) -> None:
    other = replace(MODEL, context_window=512)
    async with doubles((answers(),)) as found, member(url) as gateway:
        await publish(store, *found, model=other)
        waiting = asyncio.create_task(asked(gateway, request()))
        await soon(lambda: backend(gateway).waiting.all == 1)
        assert not found[0].requests
        await publish(store, *found)
        assert await waiting


async def test_waits_are_bounded_and_failures_told(store: Store, url: str) -> None:
    async with member(url, queue_length=1, queue_timeout_seconds=0.2) as gateway:
        with pytest.raises(ProviderModelNotLoaded, match=r"no engine for it within 0.2 s"):
            await asked(gateway, request())
    async with member(url, queue_length=1) as gateway:
        waiting = asyncio.create_task(asked(gateway, request()))
        await soon(lambda: backend(gateway).waiting.all == 1)
        with pytest.raises(ProviderRateLimit, match="1 requests are already waiting"):
            await asked(gateway, request())
        with pytest.raises(ProviderModelNotLoaded, match="no engine runs in the cluster"):
            await backend(gateway).ready()
        message = encode(Failed("m", "no node has the labels disk=tape", "no_memory")).decode()
        await store.write(
            lambda connection: connection.exec_driver_sql(
                "SELECT pg_notify(%(channel)s, %(what)s)", {"channel": tables.CHANNEL, "what": message}
            )
        )
        with pytest.raises(ProviderModelNotLoaded, match="no node has the labels disk=tape") as failed:
            await waiting
        assert json.dumps(failed.value.code) == '"no_memory"'


async def test_the_end_of_a_membership_is_logged(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def breaks(_: Member) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(Member, "run", breaks)
    config = Config(
        source=Path("config.yaml"),
        active_model="m",
        models={"m": MODEL},
        store=url,
        sections={"cluster": Cluster()},
    )
    pool = Pool(config)
    async with Gateway(config, pool) as gateway:
        services = Services(gateway)
        async with serving(services):
            await soon(lambda: "no member any more" in caplog.text)
        await services.aclose()

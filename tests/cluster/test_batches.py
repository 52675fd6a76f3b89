"""Two gateways and one PostgreSQL: one of them runs the batches of both, and the other goes on after kill -9."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from tests.cli.commands import config
from tests.gateway.double import Double, Exchange, completion
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.store import postgresql
from tests.support.batches import ended, line, of, read, start
from tests.support.kills import CONFIG, Gateway

AT_A_TIME = 4


@dataclass
class Pair:
    """Two gateways, each with an engine of its own, which shows who runs a batch."""

    gateways: list[Gateway]
    engines: list[Double]
    allowed: asyncio.Semaphore
    """As many answers give the engines; see `allow`."""
    store: str

    def url(self, number: int) -> str:
        return f"http://127.0.0.1:{self.gateways[number].port}"

    def allow(self, answers: int) -> None:
        for _ in range(answers):
            self.allowed.release()

    def asked(self, number: int) -> list[str]:
        """The texts that the engine was asked for, in their order."""
        return [each.json["messages"][-1]["content"] for each in self.engines[number].requests if each.body]

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not true():  # noqa: ASYNC110  an engine's requests have no event
                await asyncio.sleep(0.01)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    allowed = asyncio.Semaphore(0)

    async def answer(exchange: Exchange) -> None:
        await allowed.acquire()
        await exchange.whole(completion(exchange.json["messages"][-1]["content"]))

    with postgresql.start() as server:
        store = server.database()
        async with Double(answer).serve() as first, Double(answer).serve() as second:
            gateways = [Gateway(tmp_path / name, free_port()) for name in ("one", "two")]
            made = Pair(gateways, [first, second], allowed, store)
            async with running(made):
                yield made


@asynccontextmanager
async def running(pair: Pair) -> AsyncIterator[None]:
    try:
        for gateway, engine in zip(pair.gateways, pair.engines, strict=True):
            gateway.folder.mkdir()
            url = f"http://{{host}}:{gateway.port}"
            more = f'store: {pair.store}\ncluster: {{ray: "127.0.0.1:{free_port()}", gateway_url: "{url}"}}'
            written = CONFIG.replace("{store}", "STORE").format(
                engine=engine.address.port, folder=gateway.folder, port=gateway.port
            )
            config(gateway.folder, written.replace("STORE", f"{more}\nbatches: {{at_a_time: {AT_A_TIME}}}"))
            await gateway.start()
        yield
    finally:
        for gateway in pair.gateways:
            gateway.kill()


def lines(*texts: str) -> list[bytes]:
    return [line(text, model="m", messages=[{"role": "user", "content": text}]) for text in texts]


async def test_a_batch_goes_on_at_the_other_gateway(pair: Pair) -> None:
    texts = [f"number {number}" for number in range(60)]
    async with of(pair.url(0)) as one, of(pair.url(1)) as two:
        pair.allow(1)
        first = await ended(one, (await start(one, lines("first"))).id)
        assert (await two.batches.retrieve(first.id)).status == "completed", "both show it"
        runs = 0 if pair.asked(0) else 1
        # Created at the gateway that runs none.
        client = two if runs == 0 else one
        batch = await start(client, lines(*texts))
        answered = 2 * AT_A_TIME
        pair.allow(answered)
        await pair.until(lambda: len(pair.asked(runs)) == 1 + answered + AT_A_TIME)
        assert pair.asked(1 - runs) == [], "one gateway alone runs it"
        await asyncio.to_thread(pair.gateways[runs].kill)
        pair.allow(1000)
        batch = await ended(client, batch.id)
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert batch.request_counts.to_dict() == {"total": 60, "completed": 60, "failed": 0}
        assert [each["custom_id"] for each in await read(client, batch.output_file_id)] == texts
    before, after = pair.asked(runs)[1:], pair.asked(1 - runs)
    assert sorted({*before, *after}) == sorted(texts)
    assert len(set(after)) == len(after)
    again = {*before} & {*after}
    assert len(again) <= 2 * AT_A_TIME, "asked again: what was on its way, or not yet stored"


async def test_any_gateway_cancels(pair: Pair) -> None:
    async with of(pair.url(0)) as one, of(pair.url(1)) as two:
        batch = await start(one, lines(*map(str, range(20))))
        await pair.until(lambda: pair.asked(0) or pair.asked(1))
        for client in (two, one):
            assert (await client.batches.cancel(batch.id)).status in ("cancelling", "cancelled")
        assert (await ended(two, batch.id)).status == "cancelled"


async def test_batches_go_on_once_the_store_has_ended_their_claim(pair: Pair) -> None:
    """As a restart of PostgreSQL does; whichever gateway is first claims them."""
    texts = [f"number {number}" for number in range(20)]
    engine = create_engine(pair.store.replace("postgresql://", "postgresql+psycopg://"))
    async with of(pair.url(0)) as one:
        batch = await start(one, lines(*texts))
        await pair.until(lambda: pair.asked(0) or pair.asked(1))
        with engine.begin() as connection:
            assert connection.execute(_END_CLAIMS).scalars().all()
        engine.dispose()
        pair.allow(1000)
        batch = await ended(one, batch.id)
        assert [each["custom_id"] for each in await read(one, batch.output_file_id)] == texts


_END_CLAIMS = text(
    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
    "WHERE datname = current_database() AND application_name LIKE 'ctxgate, http%'"
)

"""kill -9 at random moments: nothing that was acknowledged is lost, no event comes twice, and every room goes on."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import httpx
import pytest

from gateway.features.rooms.summary import INSTRUCTION
from tests.cli.commands import config
from tests.gateway.double import Double, Exchange, completion
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.rooms.running import speaks
from tests.support.kills import CONFIG, Gateway, Seen, converse, database, engine, gateway_is_right

ROOMS = 5


async def killing(gateway: Gateway, chance: random.Random, maximum: int) -> None:
    for _ in range(maximum):
        await asyncio.sleep(chance.uniform(0.1, 1.5))
        await asyncio.to_thread(gateway.kill)
        await gateway.start()


async def scenario(folder: Path, store: str, turns: int, kills: int) -> None:
    """`turns` in all, spread over ROOMS rooms."""
    chance = random.Random(4)
    gateway = Gateway(folder, free_port())
    seen = [Seen() for _ in range(ROOMS)]
    async with Double(engine).serve() as double:
        text = CONFIG.format(engine=double.address.port, folder=folder, store=store, port=gateway.port)
        config(folder, text)
        try:
            await gateway.start()
            killer = asyncio.create_task(killing(gateway, chance, kills))
            await asyncio.gather(*(converse(gateway, room, turns // ROOMS) for room in seen))
            await killer
            await gateway_is_right(gateway, seen)
        finally:
            gateway.kill()


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_few_turns_and_a_kill(tmp_path: Path, kind: str) -> None:
    with database(kind) as store:
        await scenario(tmp_path, store, turns=5, kills=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_hundred_turns_and_twenty_kills(tmp_path: Path, kind: str) -> None:
    with database(kind) as store:
        await scenario(tmp_path, store, turns=100, kills=20)


async def compacting(folder: Path, store: str, turns: int, kills: int) -> None:
    """One room on a small window, killed at random moments of its compactions."""
    chance = random.Random(7)
    gateway = Gateway(folder, free_port())
    seen = Seen(rent={})
    writing = asyncio.Event()

    async def small(exchange: Exchange) -> None:
        if exchange.json["messages"][0]["content"] == INSTRUCTION:
            writing.set()
            await asyncio.sleep(0.1)
            await exchange.whole(completion(f"Summary of {len(double.requests)} requests."))
        else:
            await speaks("o" * 200)(exchange)

    async def kill() -> None:
        for _ in range(kills):
            writing.clear()
            await writing.wait()
            await asyncio.sleep(chance.uniform(0, 0.2))  # before the summary is there, while it is stored, or after
            await asyncio.to_thread(gateway.kill)
            await gateway.start()

    async with Double(small).serve() as double:
        text = CONFIG.format(engine=double.address.port, folder=folder, store=store, port=gateway.port)
        config(folder, text.replace('"}', '", context_window: 1024}'))
        try:
            await gateway.start()
            killer = asyncio.create_task(kill())
            async with asyncio.timeout(PATIENCE + 10 * kills):
                while not killer.done():
                    await converse(gateway, seen, len(seen.acknowledged) + 1, words=" and so on" * 30)
            await killer
            await converse(gateway, seen, len(seen.acknowledged) + turns, words=" and so on" * 30)
            await gateway_is_right(gateway, [seen])
            async with httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{gateway.port}", trust_env=False, timeout=PATIENCE
            ) as http:
                history = (await http.get(f"/llm/room/{seen.room}/history?limit=10000")).json()["data"]
        finally:
            gateway.kill()
    compacted = [event["payload"] for event in history["events"] if event["event_type"] == "history:compacted"]
    assert len(compacted) >= 2  # several kills may hit one
    tasks = [message["seq"] for message in history["messages"] if message["kind"] == "task"]
    folded = [seq for event in compacted for seq in tasks if event["from_seq"] <= seq <= event["through_seq"]]
    assert folded == tasks[: len(folded)], "a turn was folded twice, or never"
    assert [event["before"] for event in compacted[1:]] == [event["summary"] for event in compacted[:-1]]
    assert history["room"]["summary_text"] == compacted[-1]["summary"]
    print(f"{gateway.kills} kills, {len(tasks)} turns, {len(compacted)} compactions")


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_kill_while_a_room_compacts(tmp_path: Path, kind: str) -> None:
    with database(kind) as store:
        await compacting(tmp_path, store, turns=4, kills=1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_thirty_kills_while_a_room_compacts(tmp_path: Path, kind: str) -> None:
    with database(kind) as store:
        await compacting(tmp_path, store, turns=20, kills=30)

"""Two gateways and one PostgreSQL: any gateway serves any room, and kill -9 of either loses nothing."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.cli.commands import config
from tests.gateway.double import Double
from tests.ports import free_port
from tests.store.postgresql import start
from tests.support.kills import CONFIG, Gateway, Seen, converse, engine, gateway_is_right

ROOMS = 4


async def scenario(folder: Path, turns: int, kills: int) -> None:
    """Half of the clients ask one gateway, half the other; the killed one comes back."""
    chance = random.Random(5)
    gateways = [Gateway(folder / name, free_port()) for name in ("one", "two")]
    seen = [Seen() for _ in range(ROOMS)]
    with start() as server:
        store = server.database()
        async with Double(engine).serve() as double:
            for gateway in gateways:
                gateway.folder.mkdir()
                more = f'store: {store}\ncluster: {{ray: "127.0.0.1:{free_port()}", gateway_url: "http://{{host}}:{gateway.port}"}}'
                text = CONFIG.replace("{store}", more.replace("{", "{{").replace("}", "}}"))
                folder_ = gateway.folder
                config(folder_, text.format(engine=double.address.port, folder=folder_, port=gateway.port))
                await gateway.start()

            async def kill() -> None:
                for _ in range(kills):
                    await asyncio.sleep(chance.uniform(0.1, 1.5))
                    victim = chance.choice(gateways)
                    await asyncio.to_thread(victim.kill)
                    await asyncio.sleep(chance.uniform(0, 1))
                    await victim.start()

            try:
                killer = asyncio.create_task(kill())
                talks = (converse(gateways[at % 2], room, turns) for at, room in enumerate(seen))
                await asyncio.gather(*talks)
                await killer
                for gateway in gateways:
                    await gateway_is_right(gateway, seen)
            finally:
                for gateway in gateways:
                    gateway.kill()


async def test_any_gateway_serves_any_room_and_one_is_killed(tmp_path: Path) -> None:
    await scenario(tmp_path, turns=2, kills=1)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_twenty_kills_of_gateways(tmp_path: Path) -> None:
    await scenario(tmp_path, turns=30, kills=20)

"""Places in an engine for requests of several gateways, over real connections; the engine's slots are a double."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.config import Prompts
from gateway.features.cluster.prompts import ClusterPlaces, NoPlaces, PlaceServer, Rate, RemoteTurn
from gateway.prompts.live import LivePrompts
from gateway.prompts.saved import SavedPrompts
from tests.patience import PATIENCE
from tests.support.prompt_double import PROMPTS, TOKENS, Double, rendering

SETTINGS = Prompts(min_tokens=64, save="each_turn")
USAGE = {"prompt_tokens": TOKENS, "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens": 0}


class Engine:
    """An engine with two slots, and the bookkeeper beside it."""

    def __init__(self, folder: Path) -> None:
        self.live = LivePrompts(SavedPrompts(SETTINGS, folder), "m", lambda: ["weights"], ["weights"])
        self.slots = Double(folder, 2)
        self.server = PlaceServer(self.live, self.slots, "key")
        self.port = 0
        self.rate = Rate()
        self._gateways: list[ClusterPlaces] = []

    async def start(self) -> None:
        await self.live.know(self.slots)
        self.port = await self.server.start("127.0.0.1", None)

    async def gateway(self, key: str = "key") -> ClusterPlaces:
        made = ClusterPlaces("127.0.0.1", self.port, None, key, lambda: SETTINGS, self.rate)
        self._gateways.append(made)
        async with asyncio.timeout(PATIENCE):
            await made.connected.wait()
        return made

    async def close(self) -> None:
        for gateway in self._gateways:
            await gateway.aclose()
        self.server.close()

    @property
    def busy(self) -> int:
        return sum(slot.busy for slot in self.live.table.slots)

    async def frees(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.busy:  # noqa: ASYNC110  the bookkeeper has no event for us
                await asyncio.sleep(0.01)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    made = Engine(tmp_path / "prompts")
    await made.start()
    yield made
    await made.close()


async def placed(engine: Engine, places: ClusterPlaces, prompt: str, owner: str = "") -> RemoteTurn:
    async with asyncio.timeout(PATIENCE):
        turn = await places.place(engine.slots, [prompt.encode()], rendering(prompt), private=False, owner=owner)
    assert isinstance(turn, RemoteTurn)
    return turn


async def test_gateways_know_of_each_others_slots(engine: Engine) -> None:
    one, two = await engine.gateway(), await engine.gateway()
    first = await placed(engine, one, PROMPTS[0])
    second = await placed(engine, two, PROMPTS[1])
    assert {first.slot, second.slot} == {0, 1}
    for turn in (first, second):
        turn.leave()
        assert turn.answered(USAGE, 0.0, 0.0) == USAGE
    await engine.frees()
    # Each goes on where it was, whichever gateway asks.
    again = await placed(engine, two, PROMPTS[0])
    assert again.slot == first.slot
    with pytest.raises(RuntimeError), again:
        raise RuntimeError("the engine is gone")
    await engine.frees()
    await engine.live.settled()
    assert len(engine.live.saved) == 2, "saved after each turn"


async def test_another_gateways_user_gets_nothing_of_ones_prompt(engine: Engine) -> None:
    one, two = await engine.gateway(), await engine.gateway()
    slots = []
    for gateway, owner, fresh in ((one, "a", False), (two, "b", True), (one, "b", False), (two, "c", True)):
        turn = await placed(engine, gateway, PROMPTS[0], owner)
        # What the second slot held before there were two users, nobody knows.
        assert (turn.fresh, turn.apart) == (fresh, owner != "a")
        slots.append(turn.slot)
        turn.leave()
        turn.answered(USAGE, 0.0, 0.0)
        await engine.frees()
        await engine.live.settled()
    assert slots[1] == slots[2] != slots[0]
    for gateway, owner in ((one, "b"), (two, "a")):
        anywhere = gateway.anywhere(engine.slots, owner)
        assert anywhere is not None
        assert (anywhere.slot, anywhere.fresh) == (None, True)
        anywhere.leave()


async def test_nobody_is_told_what_an_unknown_engine_holds(engine: Engine) -> None:
    """Neither one without a bookkeeper, nor one whose bookkeeper doesn't answer."""
    gone = await engine.gateway()
    await gone.aclose()
    for places in (NoPlaces(), gone):
        for owner in ("", "a"):
            async with asyncio.timeout(PATIENCE):
                turn = await places.place(engine.slots, [b"x"], rendering(None), private=False, owner=owner)
            assert (turn is not None and turn.fresh) == bool(owner)
            assert places.admit_owner(owner) == bool(owner)


async def test_what_was_restored_is_told(engine: Engine) -> None:
    one = await engine.gateway()
    for prompt in PROMPTS:  # three in two slots
        turn = await placed(engine, one, prompt)
        turn.leave()
        turn.answered(USAGE, 0.0, 0.0)
        await engine.frees()
        await engine.live.settled()
    turn = await placed(engine, one, PROMPTS[0])
    cached = USAGE | {"prompt_tokens_details": {"cached_tokens": TOKENS - 1}}
    assert turn.answered(cached, 0.0, 0.0)["restored_tokens"] == TOKENS - 1
    assert engine.slots.restored


async def test_a_gateway_that_dies_leaves_its_slots(engine: Engine) -> None:
    one, two = await engine.gateway(), await engine.gateway()
    for prompt in PROMPTS[:2]:
        await placed(engine, one, prompt)
    waiting = asyncio.create_task(placed(engine, two, PROMPTS[2]))
    short = asyncio.create_task(two.place(engine.slots, [b"Hi"], rendering("Hi"), private=False))
    await one.aclose()
    assert (await waiting).slot is not None
    turn = await short
    assert turn is not None
    turn.leave()


async def test_a_client_that_leaves_while_it_waits_keeps_nothing(engine: Engine) -> None:
    one = await engine.gateway()
    taken = [await placed(engine, one, prompt) for prompt in PROMPTS[:2]]
    waiting = asyncio.create_task(placed(engine, one, PROMPTS[2]))
    async with asyncio.timeout(PATIENCE):
        while not engine.live.table.line:  # noqa: ASYNC110  the bookkeeper has no event for us
            await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    for turn in taken:
        turn.leave()
    await engine.frees()
    assert (await placed(engine, one, PROMPTS[2])).slot is not None


async def test_without_a_bookkeeper_the_engine_chooses(engine: Engine) -> None:
    one = await engine.gateway()
    for prompt in PROMPTS[:2]:
        await placed(engine, one, prompt)
    waiting = asyncio.create_task(one.place(engine.slots, [PROMPTS[2].encode()], rendering(PROMPTS[2]), private=False))
    async with asyncio.timeout(PATIENCE):
        while not engine.live.table.line:  # noqa: ASYNC110  the bookkeeper has no event for us
            await asyncio.sleep(0.01)
    engine.server.close()
    assert await waiting is None
    assert await one.place(engine.slots, [b"Hi"], rendering("Hi"), private=False) is None


@pytest.mark.parametrize("first", [b"\0\0\0\1x", b"\xff\xff\xff\xff", b"\0\0\0\x10\x82\xa4type\xa3key\xa3key\xa1?"])
async def test_whoever_lacks_the_key_is_cut_off(engine: Engine, first: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
    writer.write(first)
    async with asyncio.timeout(PATIENCE):
        assert await reader.read() == b""
    writer.close()

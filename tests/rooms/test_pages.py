"""Pages of rooms, messages and events: bounded by bytes, and together they are all."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.features.rooms import transaction
from tests.rooms.running import House, house, speaks

LENGTHS = (10, 900, 5_000, 20, 300, 2_500, 30, 40)
BOUND = 4_000


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "PAGE_BYTES", BOUND)


async def pages(rooms: House, limit: int) -> list[list[str]]:
    """The purposes of all rooms."""
    found: list[list[str]] = []
    more = True
    while more:
        answer = await rooms.http.get(f"/llm/room?limit={limit}&offset={sum(map(len, found))}")
        page = answer.json()
        more = page["more"]
        assert len(page["data"]) <= limit
        assert len(answer.content) < BOUND + 100 or len(page["data"]) == 1
        found.append([room["purpose"] for room in page["data"]])
    return found


async def test_rooms(tmp_path: Path) -> None:
    async with house(tmp_path) as rooms:
        assert await pages(rooms, 9) == [[]]
        for length in LENGTHS:
            await rooms.rent(purpose="x" * length)
        for limit in (1, 3, 100):
            found = await pages(rooms, limit)
            assert [len(purpose) for page in found for purpose in page] == [*LENGTHS[::-1]]
            assert all(found)


async def test_a_history(tmp_path: Path) -> None:
    """Its two lists end each by itself; a replay has all."""
    async with house(tmp_path, *[speaks("Fine.")] * len(LENGTHS)) as rooms:
        room = await rooms.rent()
        after = 0
        for length in LENGTHS:
            await rooms.say(room, "x" * length)
            after = (await rooms.until(room, "room:idle", after))["seq"]
        said: list[int] = []
        seen: list[int] = []
        read = [0, 0]
        more = True
        while more:
            path = f"/llm/room/{room}/history?after_message={read[0]}&after_event={read[1]}"
            page = await rooms.call("GET", path, 200)
            said += [len(message["content"]) for message in page["messages"] if message["kind"] == "task"]
            seen += [event["seq"] for event in page["events"]]
            for at, name in enumerate(("messages", "events")):
                assert len(str(page[name])) < BOUND + 1_000 or len(page[name]) == 1
                if page[name]:
                    read[at] = page[name][-1]["seq"]
            more = page["more"]
        assert said == [*LENGTHS]
        assert seen == [*range(1, len(seen) + 1)]
        assert [event["seq"] async for event in rooms.follow(room, tail=False)] == seen

"""Pruning of expired rows. The time is a value."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, func, select, table, text

from gateway.app import prunes
from gateway.config import Config, Server
from gateway.core import Gateway
from gateway.errors import ProviderInvalidRequest
from gateway.features.agents.settings import Rooms
from gateway.features.ctx import journal
from gateway.features.ctx.events import Done, line
from gateway.features.ctx.frames import Send, event_id
from gateway.features.ctx.settings import Ctx
from gateway.features.responses import conversation_store
from gateway.features.responses import response_store as kept
from gateway.features.responses.conversation_store import ConversationStore
from gateway.features.responses.response_store import ResponseStore, Stored
from gateway.features.responses.wire.conversations import written
from gateway.features.rooms import expiry as rooms
from gateway.features.rooms.schemas import Actor, Rent
from gateway.features.rooms.tables import EVENTS, MESSAGES, ROOMS
from gateway.features.rooms.transaction import Transaction
from gateway.features.rooms.workspace import files
from gateway.server.principal import LOCAL, Principal
from gateway.services import Services
from gateway.store import Store, retention
from gateway.store.clock import Clock
from gateway.store.retention import prune_all
from tests.patience import PATIENCE
from tests.store.writes import Killed, dies, watched
from tests.store.writes import count as count_of
from tests.support.state import DAY, config

NOW = time.time()


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    store = await Store.open(url)
    yield store
    await store.aclose()


def count(connection: Connection, *tables: Any) -> list[int]:
    return [connection.execute(select(func.count()).select_from(table)).scalar_one() for table in tables]


async def test_responses(store: Store, tmp_path: Path) -> None:
    responses = ResponseStore(store, 2**30)

    def response(number: int) -> Stored:
        created = int(NOW - (29 if number % 2 else 28) * DAY)
        return Stored({"id": f"r{number}", "created_at": created, "previous_response_id": None, "output": []})

    await asyncio.gather(*(responses.put(response(number), LOCAL) for number in range(500)))
    given = config(tmp_path, server=Server(responses_days=30))
    assert await kept.prune(store, given, NOW) == 0
    assert await kept.prune(store, given, NOW + 1.5 * DAY) == 250
    assert (await responses.get("r0", LOCAL)).response["id"] == "r0"
    with pytest.raises(ProviderInvalidRequest):
        await responses.get("r1", LOCAL)
    assert await kept.prune(store, config(tmp_path, server=Server(responses_days=0)), NOW) == 250


async def test_a_quota_of_responses(store: Store) -> None:
    """The oldest of that user go, never the one that is stored; a new state of a response counts once."""
    responses = ResponseStore(store, 10_000)
    ann = Principal(tenant="local", user="ann", scopes=frozenset({"*"}))

    def response(number: int, size: int, created: int = 0) -> Stored:
        made = {"id": f"r{number}", "created_at": int(NOW) + created, "previous_response_id": None, "output": []}
        return Stored(made, written([{"text": "x" * size}]))

    async def left(*numbers: int) -> list[int]:
        rows = await store.read(lambda connection: connection.execute(text("SELECT id FROM responses")).scalars().all())
        return [number for number in numbers if f"r{number}" in rows]

    await responses.put(response(100, 9_000), ann)
    for number in range(10):
        for _ in range(3):
            await responses.put(response(number, 2_000, number), LOCAL)
    assert await left(100, *range(10)) == [100, 6, 7, 8, 9]
    await responses.put(response(10, 20_000, -5), LOCAL)
    assert await left(100, *range(11)) == [100, 10]


def stored(number: int, size: int = 2_000) -> Stored:
    made = {"id": f"r{number}", "created_at": int(NOW) + number, "previous_response_id": None, "output": []}
    return Stored(made, written([{"text": "x" * size}]))


async def test_at_the_quota_writes_stay_short(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes for a long response goes some rows, or some bytes, to a write, and no write counts the others."""
    monkeypatch.setattr(kept, "REMOVED", 5)
    monkeypatch.setattr(kept, "REMOVED_BYTES", 7_000)
    responses = ResponseStore(store, 100_000)
    for number in range(40):
        await responses.put(stored(number), LOCAL)
    for number in range(40, 60):
        await responses.put(stored(number, 200), LOCAL)
    writes = watched(store, monkeypatch, "responses")
    await responses.put(stored(60, 99_000), LOCAL)
    assert writes.added == [1, *[-4] * 10, *[-5] * 3, -2]
    assert not any("sum(" in statement for statement in writes.statements)


async def test_what_expires_goes_some_rows_to_a_write(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Responses, conversations and rooms."""
    monkeypatch.setattr(kept, "REMOVED", 5)
    monkeypatch.setattr(kept, "REMOVED_BYTES", 7_000)
    monkeypatch.setattr(conversation_store, "REMOVED", 5)
    monkeypatch.setattr(rooms, "REMOVED", 3)
    responses = ResponseStore(store, 2**30)
    made = await ConversationStore(store, responses).create([], {}, LOCAL)
    for number in range(20):
        await responses.put(stored(number, 2_000 if number < 10 else 10), LOCAL)
    for number in range(20, 30):
        await responses.put(Stored(stored(number).response, written([{"text": "x"}]), made["id"]), LOCAL)
    await store.write(lambda connection: rent(connection, release=True, messages=7))
    given = config(tmp_path, server=Server(responses_days=30), sections={"rooms": Rooms(released_days=30)})
    writes = watched(store, monkeypatch, "responses", "conversations", "room_messages", "room_events", "rooms")
    assert await prune_all(store, given, prunes(), NOW + 40 * DAY) == 20 + 1 + 1
    assert min(writes.added) == -5
    assert await store.read(lambda connection: count_of(connection, *TABLES)) == [0] * len(TABLES)


@pytest.mark.parametrize("after", range(9))
async def test_a_conversation_goes_some_rows_to_a_write(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """It is gone at once, and its responses stay, wherever a process dies."""
    monkeypatch.setattr(kept, "REMOVED", 3)
    monkeypatch.setattr(conversation_store, "REMOVED", 3)
    responses = ResponseStore(store, 2**30)
    conversations = ConversationStore(store, responses)
    made = (await conversations.create([], {}, LOCAL))["id"]
    for number in range(7):
        await conversations.add(made, [{"type": "message", "role": "user", "content": "x" * 70_000}], LOCAL)
        await responses.put(Stored(stored(number).response, written([{"text": "x"}]), made), LOCAL)
    with monkeypatch.context() as patched:
        writes = watched(store, patched, "responses")
        dies(store, after, patched)
        with suppress(Killed):
            await conversations.delete(made, LOCAL)
    assert len([*filter(None, writes.added)]) == min(3, max(0, after - 1))
    assert all(abs(gone) <= 3 for gone in writes.added)
    if after:
        for call in (conversations.get(made, LOCAL), conversations.delete(made, LOCAL)):
            with pytest.raises(ProviderInvalidRequest, match="there is no conversation"):
                await call
        await responses.put(Stored(stored(7).response, [], made), LOCAL)
    else:
        await conversations.delete(made, LOCAL)
    await prune_all(store, config(tmp_path, server=Server(responses_days=30)), prunes(), NOW)
    for number in range(7):
        assert (await responses.get(f"r{number}", LOCAL)).response["id"] == f"r{number}"
        await responses.delete(f"r{number}", LOCAL)
    assert await store.read(lambda connection: count_of(connection, *TABLES)) == [int(after > 0), 0, 0, 0, 0]


TABLES = ("responses", "conversations", "room_messages", "room_events", "rooms")


async def test_many_at_once_remove_no_more_than_one_by_one(store: Store) -> None:
    """But for one: each leaves what it stored itself."""
    responses = ResponseStore(store, 10_000)
    await asyncio.gather(*(responses.put(stored(number), LOCAL) for number in range(30)))
    assert await store.read(lambda connection: count(connection, table("responses"))) in ([3], [4])
    for number in range(27, 30):
        assert (await responses.get(f"r{number}", LOCAL)).response["id"] == f"r{number}"


async def test_items_of_conversations_count(store: Store) -> None:
    """Also those that a row takes which is there already."""
    responses = ResponseStore(store, 10_000)
    conversations = ConversationStore(store, responses)
    await responses.put(stored(1), LOCAL)
    made = await conversations.create([], {}, LOCAL)
    for _ in range(4):
        await conversations.add(made["id"], [{"type": "message", "role": "user", "content": "x" * 2_000}], LOCAL)
    with pytest.raises(ProviderInvalidRequest):
        await responses.get("r1", LOCAL)
    assert len(await conversations.items(made["id"], LOCAL)) == 4


async def test_a_jump_of_the_wall_clock_makes_nothing_old(store: Store, tmp_path: Path) -> None:
    wall, passed = [NOW], [7.0]
    store.clock = Clock(lambda: wall[0], lambda: passed[0])
    responses = ResponseStore(store, 2**30)

    async def put(id: str) -> None:
        made = {"id": id, "created_at": int(wall[0]), "previous_response_id": None, "output": []}
        await responses.put(Stored(made), LOCAL)

    async def expire() -> int:
        return await prune_all(store, config(tmp_path), prunes(), store.clock.now())

    await put("before")
    wall[0] += 3650 * DAY  # ten years ahead, and back again
    await put("ahead")
    assert await expire() == 0
    wall[0] = 1e9  # in 2001, and back again
    await put("behind")
    assert await expire() == 0
    wall[0] = NOW
    assert await expire() == 0
    for shift in (wall, passed):  # and as time really goes by
        shift[0] += 31 * DAY
    assert await expire() == 2
    assert (await responses.get("ahead", LOCAL)).response["id"] == "ahead"


def rent(connection: Connection, *, release: bool, messages: int = 1) -> str:
    tx = Transaction.rent(connection, "local", "me", Rent(), [Actor()])
    for _ in range(messages):
        message = tx.say("Hi", user="me", author_kind="user", kind="task", status="done", actor_key="default")
        tx.event("room:message", {"message_id": message.id})
    if release:
        tx.to("release", mode="graceful", reason=None, by="user")
        tx.to("finish")
    tx.save()
    return tx.id


async def test_released_rooms(store: Store, tmp_path: Path) -> None:
    gone, stays = [await store.write(lambda c, release=release: rent(c, release=release)) for release in (True, False)]  # type: ignore[misc]
    given = config(tmp_path, sections={"rooms": Rooms(released_days=90)})
    for room in (gone, stays):
        files(given, "local", room).pipe_file("a.md", b"A")
    ever = NOW + 3650 * DAY
    assert await rooms.prune(store, config(tmp_path), ever) == 0
    assert await rooms.prune(store, given, NOW + 89 * DAY) == 0
    assert await rooms.prune(store, given, NOW + 91 * DAY) == 1
    assert await rooms.prune(store, given, ever) == 0
    assert await store.read(lambda c: list(c.execute(select(ROOMS.c.id)).scalars())) == [stays]
    assert await store.read(lambda c: count(c, MESSAGES, EVENTS)) == [1, 2]
    folders = tmp_path / "rooms" / "files"
    assert len([*folders.glob("*/a.md")]) == 1
    assert files(given, "local", stays).cat_file("a.md") == b"A"


def talk(connection: Connection, name: str, *, ends: bool) -> None:
    send = Send(id="m1", session=name, input="hello", scope="private")
    whose = journal.Whose("model/acme/m", 1000)
    begun = journal.begin(connection, whose, send, f"run-{name}", "keeper", "acme/m")
    assert isinstance(begun, journal.Begun)
    if ends:
        done = (begun.start[0] + 1, line(Done(id=event_id(begun.start[0] + 1), run=begun.run, status="error")))
        journal.finish(connection, begun.session, begun.run, [done], "error", None)


async def test_idle_sessions(store: Store, tmp_path: Path) -> None:
    tables = journal.session_table, journal.run_table, journal.event_table
    for number in range(50):
        await store.write(lambda c, number=number: talk(c, f"s{number}", ends=number > 0))  # type: ignore[misc]
    given = config(tmp_path, sections={"ctx": Ctx(session_days=90)})
    assert await journal.prune(store, config(tmp_path), NOW + 3650 * DAY) == 0
    assert await journal.prune(store, given, NOW + 89 * DAY) == 0
    assert await journal.prune(store, given, NOW + 91 * DAY) == 49
    # The active one stays.
    assert await store.read(lambda c: count(c, *tables)) == [1, 1, 1]


async def test_one_that_fails_does_not_stop_the_others(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await store.write(lambda c: rent(c, release=True))
    await store.write(lambda c: talk(c, "s", ends=True))
    given = config(tmp_path, sections={"rooms": Rooms(released_days=1), "ctx": Ctx(session_days=1)})
    failing = f"{__name__}:fails", f"{__name__}:has_a_bug"
    assert await prune_all(store, given, (*failing, *prunes()), NOW + 2 * DAY) == 2
    assert "can't delete expired rows: a full disk" in caplog.text
    assert "can't delete expired rows: year -2000 is out of range" in caplog.text


async def fails(store: Store, config: Config, now: float) -> int:
    raise OSError("a full disk")


async def has_a_bug(store: Store, config: Config, now: float) -> int:
    raise ValueError("year -2000 is out of range")


asked: asyncio.Queue[float] = asyncio.Queue()


async def asks(store: Store, config: Config, now: float) -> int:
    await asked.put(now)
    return 0


async def test_pruning_repeats_while_the_store_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "FIRST_SECONDS", 0)
    monkeypatch.setattr(retention, "EVERY_SECONDS", 0.01)
    async with asyncio.timeout(PATIENCE), Gateway(config(tmp_path)) as gateway:
        services = Services(gateway, None, (f"{__name__}:asks",))
        assert asked.empty()
        assert not (tmp_path / "ctxgate.db").exists()
        await services.store()
        assert await asked.get() <= await asked.get()
        await services.aclose()
        assert (tmp_path / "ctxgate.db").exists()
        names = {task.get_name() for task in asyncio.all_tasks()}
        assert "remove what is too old" not in names


async def test_a_caller_that_gives_up_does_not_stop_the_opening(tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENCE), Gateway(config(tmp_path)) as gateway:
        services = Services(gateway)
        first = asyncio.create_task(services.store())
        await asyncio.sleep(0)
        (opening,) = [task for task in asyncio.all_tasks() if task.get_name() == "open the store"]
        opening.add_done_callback(lambda _: first.cancel())
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await services.store() is opening.result()
        await services.aclose()

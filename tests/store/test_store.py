"""The store: what it has acknowledged lasts, and what fails leaves nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from gateway.errors import ProviderUnavailable
from gateway.observe.shares import tenant
from gateway.store import Claimed, Store
from tests.patience import PATIENCE
from tests.store.postgresql import Server, end_claims


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    store = await Store.open(url)
    await store.write(lambda connection: connection.execute(text("CREATE TABLE said (number INTEGER PRIMARY KEY)")))
    yield store
    await store.aclose()


def say(connection: Connection, number: int) -> int:
    connection.execute(text("INSERT INTO said VALUES (:number)"), {"number": number})
    return number


def said(connection: Connection) -> list[int]:
    return list(connection.execute(text("SELECT number FROM said ORDER BY number")).scalars())


async def test_writes_run_in_their_order_and_return_their_results(store: Store) -> None:
    numbers = list(range(500))
    assert await asyncio.gather(*(store.write(lambda c, n=n: say(c, n)) for n in numbers)) == numbers  # type: ignore[misc]
    assert await store.read(said) == numbers


async def order_of(store: Store, *asked: tuple[str, int]) -> list[str]:
    """In which order tenants' writes run that were asked for, so many of each, while another one ran."""
    ran: list[str] = []
    began, go = threading.Event(), threading.Event()

    def held(_: Connection) -> None:
        began.set()
        go.wait(PATIENCE)

    async def write(who: str, work: Callable[[Connection], None]) -> None:
        tenant.set(who)
        await store.write(work)

    writes = [asyncio.create_task(write("first", held))]
    try:
        assert await asyncio.to_thread(began.wait, PATIENCE)
        for who, number in asked:
            writes += [asyncio.create_task(write(who, lambda _, who=who: ran.append(who))) for _ in range(number)]  # type: ignore[misc]
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # each has asked by now
    finally:
        go.set()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*writes)
    return ran


async def test_tenants_take_turns(store: Store) -> None:
    assert await order_of(store, ("greedy", 300), ("other", 2), ("third", 1)) == [
        *("greedy", "other", "third", "greedy", "other"),
        *["greedy"] * 298,
    ]


async def test_half_of_the_queue_is_left_to_others(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.store.store.WAITING", 8)
    store = await Store.open(url)
    try:
        ran = await order_of(store, ("greedy", 30), ("other", 1))
    finally:
        await store.aclose()
    assert ran.index("other") == 1


async def test_work_that_raises_is_rolled_back_alone(store: Store) -> None:
    def fail(connection: Connection) -> None:
        say(connection, 2)
        raise LookupError("mine")

    results = await asyncio.gather(
        store.write(lambda c: say(c, 1)), store.write(fail), store.write(lambda c: say(c, 3)), return_exceptions=True
    )
    assert results[0] == 1
    assert isinstance(results[1], LookupError)
    assert results[2] == 3
    assert await store.read(said) == [1, 3]


async def test_a_writer_that_gives_up_undoes_nothing(store: Store) -> None:
    task = asyncio.create_task(store.write(lambda c: say(c, 7)))
    await asyncio.sleep(0)
    task.cancel()
    await store.write(lambda c: say(c, 8))
    assert 8 in await store.read(said)


async def test_a_closed_store_says_so(url: str) -> None:
    store = await Store.open(url)
    await store.aclose()
    await store.aclose()
    for call in (store.read, store.write):
        with pytest.raises(ProviderUnavailable, match="closed"):
            await call(lambda c: c.execute(text("SELECT 1")))


async def test_writes_that_wait_for_a_place_end_when_the_store_closes(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.store.store.WAITING", 2)
    store, go = await Store.open(url), threading.Event()
    held = asyncio.create_task(store.write(lambda c: go.wait(PATIENCE)))
    writes = [asyncio.create_task(store.write(lambda c: None)) for _ in range(5)]
    for _ in range(10):
        await asyncio.sleep(0)  # one is queued behind the one that is held, the others wait for a place
    closing = asyncio.create_task(store.aclose())
    await asyncio.sleep(0)
    go.set()
    async with asyncio.timeout(PATIENCE):
        results = await asyncio.gather(held, *writes, return_exceptions=True)
        await closing
    assert results[:2] == [True, None]
    assert all(isinstance(result, ProviderUnavailable) for result in results[2:])


async def test_opening_twice_at_once(url: str) -> None:
    stores = await asyncio.gather(*(Store.open(url) for _ in range(4)))
    for store in stores:
        await store.aclose()


async def test_work_is_claimed_by_one_store_at_a_time(url: str) -> None:
    first, second = await Store.open(url), await Store.open(url)
    try:
        await first.claim("rooms")
        await first.claim("rooms")
        with pytest.raises(Claimed, match=rf"pid {os.getpid()} on .*config\.yaml") as caught:
            await second.claim("rooms")
        assert caught.value.code == "store_claimed"
        await first.aclose()
        await second.claim("rooms")
    finally:
        await first.aclose()
        await second.aclose()


async def test_a_claim_that_the_database_has_ended_is_noticed(postgresql: Server) -> None:
    url = postgresql.database()
    first, second = await Store.open(url), await Store.open(url)
    try:
        assert not await first.holds("rooms")
        await first.claim("rooms")
        assert await first.holds("rooms")
        assert await second.write(end_claims) == 1
        assert not await first.holds("rooms")
        assert not await first.holds("rooms")
        await second.claim("rooms")
        with pytest.raises(Claimed):
            await first.claim("rooms")
        assert await second.holds("rooms")
        await second.aclose()
        await first.claim("rooms")
        assert await first.holds("rooms")
    finally:
        await first.aclose()
        await second.aclose()


async def test_databases_have_claims_of_their_own(tmp_path: Path, postgresql: Server) -> None:
    urls = [f"sqlite:///{tmp_path / 'a.db'}", f"sqlite:///{tmp_path / 'b.db'}", *(postgresql.database() for _ in "ab")]
    stores = [await Store.open(url) for url in urls]
    for store in stores:
        await store.claim("rooms")
    for store in stores:
        await store.aclose()


HOLDER = """
import asyncio, sys
from gateway.store import Store

async def main():
    store = await Store.open(sys.argv[1])
    await store.claim("rooms")
    print("claimed", flush=True)
    await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


def hold(url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


async def test_who_is_killed_claims_nothing_any_more(url: str) -> None:
    process = hold(url)
    store = await Store.open(url)
    try:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "claimed\n"
        with pytest.raises(Claimed, match=f"pid {process.pid} on "):
            await store.claim("rooms")
        process.kill()
        await asyncio.to_thread(process.wait, PATIENCE)
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    await store.claim("rooms")
                except Claimed:  # a PostgreSQL that is slow to see its client's end
                    continue
                break
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)
        await store.aclose()


async def test_an_sqlite_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "new" / "store.db"
    store = await Store.open(f"sqlite:///{path}")
    await store.write(lambda c: c.execute(text("CREATE TABLE said (number INTEGER)")))
    assert [stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()] == [0o600] * 3
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    await store.aclose()


@pytest.mark.parametrize("url", ["sqlite:////proc/nowhere/store.db", "postgresql://me:hidden@127.0.0.1:1/nothing"])
async def test_the_log_says_which_store_cant_be_opened_but_no_password(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ProviderUnavailable) as caught:
        await Store.open(url)
    assert "hidden" not in caplog.text
    assert url.rpartition("/")[2] in caplog.text
    for place in ("store.db", "/proc", "hidden", "127.0.0.1", "nothing"):
        assert place not in str(caught.value)


async def test_clients_learn_no_place_and_the_log_has_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As while the disk is full."""
    store = await Store.open(f"sqlite:///{tmp_path}/store.db")
    try:
        for _ in range(3):
            with pytest.raises(ProviderUnavailable) as caught:
                await store.write(lambda connection: connection.execute(text("INSERT INTO nowhere VALUES (1)")))
            assert str(caught.value) == "the store can't be used: no such table: nowhere; the log says more"
    finally:
        await store.aclose()
    assert caplog.text.count(str(tmp_path)) == 1


WRITER = """
import asyncio, sys
from sqlalchemy import text
from gateway.store import Store

async def main():
    store = await Store.open(sys.argv[1])
    for number in range(100_000):
        await store.write(lambda c: c.execute(text("INSERT INTO said VALUES (:n)"), {"n": number}))
        print(number, flush=True)

asyncio.run(main())
"""


def write_forever(url: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITER, url], stdout=subprocess.PIPE, text=True)


async def test_what_was_acknowledged_outlives_kill_9(store: Store, url: str) -> None:
    process = write_forever(url)
    assert process.stdout is not None
    try:
        last = -1
        while last < 50:
            last = int(await asyncio.to_thread(process.stdout.readline))
        os.kill(process.pid, signal.SIGKILL)
        rest = await asyncio.to_thread(process.stdout.read)
        last = max([last, *map(int, rest.split("\n")[:-1])])
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    numbers = await store.read(said)
    assert numbers[: last + 1] == list(range(last + 1))
    assert len(numbers) <= last + 2


def test_postgresql_without_its_package_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("active_model: e\nmodels: {e: {runtime: echo}}\nstore: postgresql://a@127.0.0.1:1/x\n")
    # None makes the import system fail to find a module.
    code = "import sys; sys.modules['psycopg'] = None; from gateway.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "records", "--config", str(file), "models"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 69
    assert done.stderr == "ctxgate: store: PostgreSQL needs the package psycopg: pip install 'ctxgate[postgresql]'\n"

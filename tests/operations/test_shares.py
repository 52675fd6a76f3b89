"""What tenants share: threads, places, and how many may wait."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from gateway.app import build
from gateway.config import Config, Model
from gateway.core.gateway import Gateway
from gateway.errors import ProviderRateLimit
from gateway.line import Line, Waiter
from gateway.observe.shares import OWNER, Tally, TenantPlaces, Workers, has_share, tenant
from gateway.schema.pool import THREADS, WAITING, Pool, Threads
from gateway.server.keys import FILE, KeyFile
from gateway.store import Store
from tests.gateway.running import FAST
from tests.patience import PATIENCE
from tests.provider.server import serve
from tests.responses.websocket import PATH, ask, rest


@pytest.fixture(autouse=True)
def _left_as_found() -> Iterator[None]:
    """The next test's work is the owner's again."""
    yield
    tenant.set(OWNER)


@pytest.mark.parametrize("http", [FAST, "httptools"])
async def test_each_request_works_for_its_tenant(http: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On every way to a model, and two tenants after each other on one connection."""
    keys = {who: KeyFile(tmp_path / FILE).add(scopes=["models"], tenant=who)[1] for who in ("one", "two")}
    seen: list[str] = []
    chat = Gateway.chat

    def noted(self: Gateway, *given: Any, **named: Any) -> Any:
        seen.append(tenant.get())
        return chat(self, *given, **named)

    monkeypatch.setattr(Gateway, "chat", noted)
    config = Config(
        source=Path(__file__),
        active_model="echo",
        models={"echo": Model(name="echo", runtime="echo")},
        state_dir=tmp_path,
    )
    say = {"model": "echo", "messages": [{"role": "user", "content": "Hi"}]}
    asked: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": say,
        "/v1/chat/completions?x=1": say,
        "/v1/responses": {"model": "echo", "input": "Hi"},
        "/v1/messages": {**say, "max_tokens": 9},
        "/api/chat": {**say, "stream": False},
    }
    bounds = httpx.Limits(max_connections=1)
    with serve(build(config), lifespan="on", http=http) as url:
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, limits=bounds) as client:
            for path, body in asked.items():
                for who in ("one", "two", "one"):
                    answer = await client.post(path, json=body, headers={"authorization": f"Bearer {keys[who]}"})
                    assert answer.status_code == 200, answer.text
                assert seen == ["one", "two", "one"], path
                seen.clear()
        for who in ("one", "two") if http == FAST else ():  # the plain server has no WebSockets
            head = {"authorization": f"Bearer {keys[who]}"}
            async with connect(f"ws{url[4:]}{PATH}", proxy=None, additional_headers=head) as socket:
                await ask(socket, model="echo")
                await rest(socket)
            assert seen.pop() == who


def submit(workers: Workers, who: str, work: Callable[[], object]) -> Future[object]:
    def as_tenant() -> Future[object]:
        tenant.set(who)
        return workers.submit(work)

    return copy_context().run(as_tenant)


@contextmanager
def held(workers: Workers, who: str, threads: int) -> Iterator[None]:
    """That many pieces of the tenant's work run and don't end meanwhile."""
    begun, gate = threading.Semaphore(0), threading.Event()

    def work() -> None:
        begun.release()
        gate.wait(PATIENCE)

    waits = [submit(workers, who, work) for _ in range(threads)]
    try:
        assert all(begun.acquire(timeout=PATIENCE) for _ in waits)
        yield
    finally:
        gate.set()
        for each in waits:
            each.result(PATIENCE)


def test_tenants_take_turns() -> None:
    done: list[str] = []
    with Workers(1) as workers:
        with held(workers, "greedy", 1):
            asked = [*["greedy"] * 5, "other", "third", "other"]
            waits = [
                submit(workers, who, lambda name=f"{who} {at}": done.append(name))  # type: ignore[misc]
                for at, who in enumerate(asked)
            ]
        for each in waits:
            each.result(PATIENCE)
    assert done == ["greedy 0", "other 5", "third 6", "greedy 1", "other 7", "greedy 2", "greedy 3", "greedy 4"]


def test_half_of_the_threads_are_left_to_others() -> None:
    with Workers(4) as workers:
        with held(workers, "greedy", 2):
            more = [submit(workers, "greedy", int) for _ in range(9)]
            assert submit(workers, "other", lambda: 1).result(PATIENCE) == 1
            assert not any(each.done() for each in more)
            assert workers.waiting() == 0, "nothing waits for a thread"
        assert [each.result(PATIENCE) for each in more] == [0] * 9
        with held(workers, "local", 4):
            late = submit(workers, "other", int)
            assert workers.waiting() > 0
        assert late.result(PATIENCE) == 0


def test_work_that_nobody_waits_for_is_left_out() -> None:
    with Workers(1) as workers:
        with held(workers, "one", 1):
            gone, wanted = submit(workers, "one", lambda: 1 / 0), submit(workers, "one", lambda: 1 / 0)
            assert gone.cancel()
        with pytest.raises(ZeroDivisionError):
            wanted.result(PATIENCE)
    with pytest.raises(RuntimeError, match="after shutdown"):
        workers.submit(int)


def test_nothing_stays_of_what_failed() -> None:
    class Large:
        def read(self) -> None:
            raise LookupError

    large = Large()
    ref = weakref.ref(large)
    with Workers(1) as workers:
        gc.disable()
        try:
            with pytest.raises(LookupError):
                workers.submit(large.read).result(PATIENCE)
            workers.submit(int).result(PATIENCE)
            del large
            assert ref() is None
        finally:
            gc.enable()


async def test_readers_of_the_store_are_shared(tmp_path: Path) -> None:
    store = await Store.open(f"sqlite:///{tmp_path}/store.db")
    begun, gate = threading.Semaphore(0), threading.Event()

    def slow(_: object) -> None:
        begun.release()
        gate.wait(PATIENCE)

    async def read_as(who: str, work: Callable[[object], None]) -> None:
        tenant.set(who)
        await store.read(work)

    greedy = [asyncio.create_task(read_as("greedy", slow)) for _ in range(12)]
    try:
        assert await asyncio.to_thread(begun.acquire, timeout=PATIENCE)
        async with asyncio.timeout(PATIENCE):
            await asyncio.create_task(read_as("other", lambda _: None))
    finally:
        gate.set()
        await asyncio.gather(*greedy)
        await store.aclose()


@pytest.mark.parametrize(
    ("who", "mine", "taken", "maximum", "has"),
    [
        ("one", 5, 5, 10, True),
        ("one", 6, 6, 10, False),
        ("one", 3, 7, 10, True),
        ("one", 4, 7, 10, False),
        ("one", 1, 10, 10, True),
        ("one", 1, 11, 10, False),
        ("one", 1, 1, 1, True),
        ("one", 2, 2, 2, False),
        ("local", 10, 10, 10, True),
        ("local", 11, 11, 10, False),
    ],
)
def test_shares(who: str, mine: int, taken: int, maximum: int, has: bool) -> None:
    assert has_share(who, mine, taken, maximum) is has


def test_a_tally_counts_each_tenant() -> None:
    tally = Tally()
    tenant.set("one")
    with tally.one_more():
        assert not tally.has_room(2)
        tenant.set("other")
        assert tally.has_room(2)
        with tally.one_more():
            assert tally.all == 2
            tenant.set("third")
            assert not tally.has_room(2)
            assert tally.has_room(3)
    assert tally.all == 0


class Held:
    """Tasks that take a place each and keep it until they are told."""

    def __init__(self, places: TenantPlaces) -> None:
        self.begun: list[str] = []
        self._places = places
        self.gates: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def ask(self, *names: str) -> None:
        """Each name begins with the tenant's."""
        for name in names:
            self.gates[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._work(name))

    async def settle(self) -> list[str]:
        for _ in range(5):
            await asyncio.sleep(0)
        return self.begun

    async def end(self, *names: str) -> list[str]:
        for name in names:
            self.gates[name].set()
        await asyncio.gather(*(self._tasks[name] for name in names))
        return await self.settle()

    async def leave(self, *names: str) -> list[str]:
        for name in names:
            self._tasks[name].cancel()
        await asyncio.gather(*(self._tasks[name] for name in names), return_exceptions=True)
        return await self.settle()

    async def _work(self, name: str) -> None:
        tenant.set(name.split()[0])
        async with self._places.place():
            self.begun.append(name)
            await self.gates[name].wait()


async def test_places_are_taken_in_turns() -> None:
    held = Held(TenantPlaces(2))
    held.ask("a 1", "a 2", "a 3", "b 1", "b 2")
    assert await held.settle() == ["a 1", "b 1"]
    assert await held.end("b 1") == ["a 1", "b 1", "b 2"]
    assert await held.end("b 2") == ["a 1", "b 1", "b 2"], "a has its share"
    assert await held.leave("a 2", "a 1") == ["a 1", "b 1", "b 2", "a 3"]
    held.ask("local 1", "local 2")
    assert (await held.settle())[-1] == "local 1"
    assert (await held.end("a 3"))[-1] == "local 2"
    await held.end("local 1", "local 2")


async def test_a_place_that_was_given_to_one_who_left_is_free() -> None:
    held = Held(TenantPlaces(1))
    held.ask("a 1", "b 1", "c 1")
    await held.settle()
    held.gates["a 1"].set()  # b's turn comes as b leaves
    await asyncio.sleep(0)
    assert (await held.leave("b 1"))[-1] in ("b 1", "c 1")
    await held.end("a 1")
    assert (await held.settle())[-1] == "c 1"
    await held.end("c 1")


async def test_slow_schemas_of_one_tenant_leave_a_process_to_others() -> None:
    begun, gate = threading.Semaphore(0), threading.Event()
    threads = Threads(Pool())

    def slow() -> None:
        begun.release()
        gate.wait(PATIENCE)

    async def run_as(who: str, work: Callable[[], None]) -> None:
        tenant.set(who)
        await threads.run(work)

    maximum = (THREADS + WAITING) // 2
    greedy = [asyncio.create_task(run_as("greedy", slow)) for _ in range(maximum + 3)]
    try:
        assert await asyncio.to_thread(begun.acquire, timeout=PATIENCE)
        refused = [each for each in greedy if each.done()]
        assert [type(each.exception()) for each in refused] == [ProviderRateLimit] * 3
        async with asyncio.timeout(PATIENCE):
            await asyncio.create_task(run_as("other", lambda: None))
        assert not begun.acquire(blocking=False)
    finally:
        gate.set()
        await asyncio.gather(*greedy, return_exceptions=True)
        threads.close()


async def test_a_tenant_has_half_of_an_engine_s_queue() -> None:
    def wait(queue: Line[None], who: str) -> None:
        tenant.set(who)
        queue.check_room("m", 4, 1.0)
        queue.add(Waiter())

    queue: Line[None] = Line()
    for who in ("one", "one", "other", "local"):
        wait(queue, who)
    queue = Line()
    for _ in range(2):
        wait(queue, "one")
    with pytest.raises(ProviderRateLimit, match="2 of them this tenant's"):
        wait(queue, "one")
    wait(queue, "other")

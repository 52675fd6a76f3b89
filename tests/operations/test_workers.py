"""Threads in which each tenant has a share."""

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

import pytest

from gateway.observe.workers import Workers, tenant
from gateway.store import Store
from tests.patience import PATIENCE


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

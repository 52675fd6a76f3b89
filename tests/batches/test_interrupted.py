"""Batches whose store fails for a moment, or whose clients leave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import ProviderUnavailable
from gateway.features.batches.batch_store import BatchStore
from tests.gateway.double import answers, completion, endless
from tests.patience import PATIENCE
from tests.support.batches import chats, ended, gateway, of, start


def fails_once(monkeypatch: pytest.MonkeyPatch, name: str, when: Callable[..., bool] = lambda *given: True) -> None:
    """The first call of the store's method that `when` chooses fails."""
    real = getattr(BatchStore, name)
    failed = False

    async def method(store: BatchStore, *given: Any, **more: Any) -> Any:
        nonlocal failed
        if not failed and when(*given):
            failed = True
            raise ProviderUnavailable("the store can't be used", code="store_unavailable")
        return await real(store, *given, **more)

    monkeypatch.setattr(BatchStore, name, method)


async def test_a_failed_read_delays_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While its requests are answered: the first are under way when the next can't be read."""
    fails_once(monkeypatch, "pending", lambda id, after, limit: after is not None)
    async with gateway(tmp_path) as (url, _), of(url) as client:
        batch = await ended(client, (await start(client, chats(*map(str, range(40))))).id)
        assert batch.request_counts is not None
        assert (batch.status, batch.request_counts.completed) == ("completed", 40)


async def test_a_start_without_the_store_resumes_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway(tmp_path, endless) as (url, engine), of(url) as client:
        batch = await start(client, chats("a", model="m"))
        await engine.asked()
    fails_once(monkeypatch, "open")
    async with gateway(tmp_path, answers(completion("On."))) as (url, engine), of(url) as client:
        assert (await ended(client, batch.id)).status == "completed"


async def leave(
    monkeypatch: pytest.MonkeyPatch, name: str, ask: Callable[[], Coroutine[Any, Any, Any]], notice: Callable[[], Any]
) -> None:
    """A client that asks leaves after the store's method has written, before the gateway goes on.

    notice: other requests, with which the gateway notices it.
    """
    written, gone = threading.Event(), threading.Event()
    real = getattr(BatchStore, name)

    async def method(store: BatchStore, *given: Any, **more: Any) -> Any:
        result = await real(store, *given, **more)
        written.set()
        await asyncio.to_thread(gone.wait, PATIENCE)
        return result

    with monkeypatch.context() as patched:
        patched.setattr(BatchStore, name, method)
        asking = asyncio.create_task(ask())
        await asyncio.to_thread(written.wait, PATIENCE)
        asking.cancel()
        await asyncio.wait({asking})
        for _ in range(10):
            await notice()
        gone.set()


async def test_a_client_that_leaves_gets_its_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway(tmp_path) as (url, _), of(url) as client:
        await leave(monkeypatch, "create", lambda: start(client, chats("b")), client.batches.list)
        (batch,) = (await client.batches.list()).data
        assert (await ended(client, batch.id)).status == "completed"


async def test_a_client_that_leaves_cancels_its_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway(tmp_path, endless) as (url, engine), of(url) as client:
        batch = await start(client, chats("a", model="m"))
        exchange = await engine.asked()
        await leave(monkeypatch, "move", lambda: client.batches.cancel(batch.id), client.batches.list)
        await exchange.gone
        assert (await ended(client, batch.id)).status == "cancelled"


async def test_a_second_cancellation_makes_up_for_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store stored the first one, and couldn't say so."""
    async with gateway(tmp_path, endless) as (url, engine), of(url) as client:
        batch = await start(client, chats("a", model="m"))
        exchange = await engine.asked()
        move = BatchStore.move

        async def lost(*given: Any, **more: Any) -> Any:
            await move(*given, **more)
            raise ProviderUnavailable("the connection was lost")

        with monkeypatch.context() as patched:
            patched.setattr(BatchStore, "move", lost)
            with pytest.raises(Exception, match="the connection was lost"):
                await client.batches.cancel(batch.id)
        assert (await client.batches.cancel(batch.id)).status in ("cancelling", "cancelled")
        await exchange.gone
        assert (await ended(client, batch.id)).status == "cancelled"


async def test_an_impatient_client_doesn_t_begin_the_end_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, may_end, times = threading.Event(), threading.Event(), 0
    finish = BatchStore.finish

    async def slow(*given: Any, **more: Any) -> Any:
        nonlocal times
        times += 1
        began.set()
        await asyncio.to_thread(may_end.wait, PATIENCE)
        return await finish(*given, **more)

    monkeypatch.setattr(BatchStore, "finish", slow)
    async with gateway(tmp_path, endless) as (url, engine), of(url) as client:
        batch = await start(client, chats("a", model="m"))
        await engine.asked()
        await client.batches.cancel(batch.id)
        assert await asyncio.to_thread(began.wait, PATIENCE)
        for _ in range(3):
            assert (await client.batches.cancel(batch.id)).status == "cancelling"
        may_end.set()
        assert (await ended(client, batch.id)).status == "cancelled"
    assert times == 1

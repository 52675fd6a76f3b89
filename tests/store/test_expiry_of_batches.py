"""Files, batches and conversations that have expired. The time is a value."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from gateway.app import prunes
from gateway.config import Server
from gateway.errors import ProviderInvalidRequest
from gateway.features.batches.batch_store import BatchStore
from gateway.features.batches.file_store import FileStore
from gateway.features.batches.objects import CreateBatch
from gateway.features.batches.settings import Batches
from gateway.features.responses.conversation_store import ConversationStore
from gateway.features.responses.response_store import ResponseStore, Stored
from gateway.features.responses.wire.conversations import written
from gateway.server.principal import LOCAL
from gateway.store import Store
from gateway.store.retention import prune_all
from tests.support.state import DAY, config

NOW = time.time()


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    store = await Store.open(url)
    yield store
    await store.aclose()


async def rows(store: Store, table: str) -> int:
    counted = text(f"SELECT count(*) FROM {table}")
    return await store.read(lambda connection: int(connection.execute(counted).scalar_one()))


async def test_files_and_batches(store: Store, tmp_path: Path) -> None:
    """An open batch stays, however old it is, and so does a file that was asked to stay."""
    given = config(tmp_path, sections={"batches": Batches(days=3)})
    files, batches = FileStore(store, given), BatchStore(store)
    short, long = [await files.add([b"a", b"b"], "in", seconds, LOCAL) for seconds in (None, int(5 * DAY))]
    wanted = CreateBatch(short.id, "/v1/chat/completions", "24h")
    over, open = [await batches.create(wanted, given, LOCAL) for _ in range(2)]
    await batches.begin(over.id, 0)
    await batches.finish(await batches.move(over.id, "finalizing"))
    assert await prune_all(store, given, prunes(), NOW + 2 * DAY) == 0
    assert await prune_all(store, given, prunes(), NOW + 4 * DAY) == 2
    assert [batch.id for batch in await batches.page(LOCAL, None, 9)] == [open.id]
    assert (await files.get(long.id, LOCAL)).bytes == 2
    assert [part async for part in files.parts(long.id)] == [b"a", b"b"]
    with pytest.raises(ProviderInvalidRequest):
        await files.get(short.id, LOCAL)
    assert await rows(store, "file_parts") == 2


async def test_conversations(store: Store, tmp_path: Path) -> None:
    """One goes as a whole, once nobody has used it for long; its responses don't go before it."""
    responses = ResponseStore(store, 2**30)
    conversations = ConversationStore(store, responses)
    given = config(tmp_path, server=Server(responses_days=3))
    item = {"type": "message", "role": "user", "content": "Hi"}
    made = await conversations.create([item], {}, LOCAL)
    other: dict[str, Any] = await conversations.create([item], {}, LOCAL)
    old = {"id": "r", "created_at": int(NOW - 9 * DAY), "previous_response_id": None, "output": []}
    await responses.put(Stored(old, written([item]), made["id"]), LOCAL)
    await responses.put(Stored({**old, "id": "alone"}, written([item])), LOCAL)
    assert await prune_all(store, given, prunes(), NOW) == 1
    assert len(await conversations.items(made["id"], LOCAL)) == 2
    await conversations.delete(other["id"], LOCAL)
    assert await rows(store, "responses") == 2
    assert await prune_all(store, given, prunes(), NOW + 4 * DAY) == 1
    assert await rows(store, "responses") == 0


async def test_a_response_of_a_conversation_that_is_gone(store: Store) -> None:
    """It is stored all the same; items alone are not."""
    responses = ResponseStore(store, 2**30)
    made = {"id": "r", "created_at": int(NOW), "previous_response_id": None, "output": []}
    await responses.put(Stored(made, [], "conv_gone"), LOCAL)
    await responses.put(Stored({}, [], "conv_gone"), LOCAL)
    assert (await responses.get("r", LOCAL)).response["id"] == "r"
    assert await rows(store, "responses") == 1

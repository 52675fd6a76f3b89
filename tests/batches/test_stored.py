"""The files of a batch, whatever moment a process dies at while it writes them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text

from gateway.errors import ProviderUnavailable
from gateway.features.batches import batch_store
from gateway.features.batches.batch_store import BatchStore
from gateway.features.batches.file_store import FileStore
from gateway.features.batches.objects import CreateBatch, Line, LineReader, answered
from gateway.server.principal import LOCAL
from gateway.store import Store
from tests.support.batches import chats
from tests.support.state import config


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = await Store.open(f"sqlite:///{tmp_path}/store.db")
    yield store
    await store.aclose()


async def test_files_are_written_anew(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the parts are there when the process dies; nobody sees them, and in the end there is each line once."""
    monkeypatch.setattr(batch_store, "PART", 1000)
    given = config(tmp_path)
    files, batches = FileStore(store, given), BatchStore(store)
    file = await files.add([b"x"], "in", None, LOCAL)
    made = await batches.create(CreateBatch(file.id, "/v1/chat/completions", "24h"), given, LOCAL)
    reader = LineReader("/v1/chat/completions", 1000)
    lines = reader.feed(b"\n".join(chats(*map(str, range(200)))) + b"\n")
    await batches.add_lines(made.id, [line for line in lines if isinstance(line, Line)])
    await batches.begin(made.id, reader.total)
    for number in range(200, 0, -1):
        await batches.answer(made.id, number, answered(str(number - 1), 200, b"{}"), failed=number % 50 == 0)
        await batches.answer(made.id, number, b"another answer", failed=False)
    batch = await batches.move(made.id, "finalizing")
    writes = 0
    write = store.write

    async def dies(work):  # type: ignore[no-untyped-def]
        nonlocal writes
        writes += 1
        if writes > 5:
            raise ProviderUnavailable("killed")
        return await write(work)

    with monkeypatch.context() as patched:
        patched.setattr(store, "write", dies)
        with pytest.raises(ProviderUnavailable):
            await batches.finish(batch)
    assert [each.id for each in await files.page(LOCAL, None, None, 9, "asc")] == [file.id]
    await batches.finish(await batches.load(made.id))
    await batches.finish(batch)  # another process may come late
    assert await store.read(lambda c: set(c.execute(text("SELECT DISTINCT file_id FROM file_parts")).scalars())) == {
        each.id for each in await files.page(LOCAL, None, None, 9, "asc")
    }
    ended = await batches.get(made.id, LOCAL)
    assert ended.object["request_counts"] == {"total": 200, "completed": 196, "failed": 4}
    found = {}
    for name in ("output", "error"):
        content = b"".join([part async for part in files.parts(ended.object[f"{name}_file_id"])])
        assert len(content) == (await files.get(ended.object[f"{name}_file_id"], LOCAL)).bytes
        found[name] = [int(line.split(b'"custom_id":"')[1].split(b'"')[0]) for line in content.splitlines()]
    assert found["error"] == [49, 99, 149, 199]
    assert found["output"] == [number for number in range(200) if number not in found["error"]]

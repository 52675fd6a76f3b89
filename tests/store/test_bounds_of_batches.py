"""Batches whose lines are long: what is read and written at a time is bounded by bytes. And many files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import Connection, text

from gateway.errors import ProviderInvalidRequest
from gateway.features.batches import batch_store, file_store
from gateway.features.batches.batch_store import Batch, BatchStore
from gateway.features.batches.file_store import FileStore
from gateway.features.batches.objects import CreateBatch, Line, LineReader, answered
from gateway.server.principal import LOCAL, Principal
from gateway.store import Store
from tests.support.batches import line
from tests.support.state import config

T = TypeVar("T")

PART = 1000
ANSWERS = [b'"%s"' % (b"x" * length) for length in (5, 3_300, 0, 9_999, 800, 900, 7, 40_000, 3)]


@pytest.fixture
async def store(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    monkeypatch.setattr(batch_store, "PART", PART)
    store = await Store.open(url)
    yield store
    await store.aclose()


async def begun(store: Store, folder: Path, *texts: str) -> Batch:
    """A batch with a line for each text."""
    batches, given = BatchStore(store), config(folder)
    file = await FileStore(store, given).add([b"x"], "in", None, LOCAL)
    made = await batches.create(CreateBatch(file.id, "/v1/chat/completions", "24h"), given, LOCAL)
    reader = LineReader("/v1/chat/completions", 1000)
    lines = reader.feed(b"".join(line(str(number), model="m", input=text) + b"\n" for number, text in enumerate(texts)))
    await batches.add_lines(made.id, [each for each in lines if isinstance(each, Line)])
    return await batches.begin(made.id, reader.total)


async def content(store: Store, folder: Path, file: str) -> list[bytes]:
    return [part async for part in FileStore(store, config(folder)).parts(file)]


@pytest.mark.parametrize("failed", [False, True])
async def test_files_are_written_part_by_part(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: bool
) -> None:
    """Each part has its size, however long a line is, and a write has one part of a file."""
    batches = BatchStore(store)
    batch = await begun(store, tmp_path, *map(str, range(len(ANSWERS))))
    lines = [answered(str(number), 200, answer) for number, answer in enumerate(ANSWERS)]
    for number, answer in enumerate(lines, 1):
        await batches.answer(batch.id, number, answer, failed=failed)
    added: list[int] = []
    write = store.write

    async def counted(work: Callable[[Connection], T]) -> T:
        def both(connection: Connection) -> T:
            before = parts(connection)
            done = work(connection)
            added.append(parts(connection) - before)
            return done

        return await write(both)

    def parts(connection: Connection) -> int:
        return int(connection.execute(text("SELECT count(*) FROM file_parts")).scalar_one())

    with monkeypatch.context() as patched:
        patched.setattr(store, "write", counted)
        await batches.finish(await batches.move(batch.id, "finalizing"))
    ended = await batches.get(batch.id, LOCAL)
    found = await content(store, tmp_path, ended.object["error_file_id" if failed else "output_file_id"])
    assert b"".join(found) == b"\n".join((*lines, b""))
    assert {len(part) for part in found[:-1]} == {PART}
    assert 0 < len(found[-1]) <= PART
    assert max(added) == 1


async def test_requests_are_read_some_at_a_time(store: Store, tmp_path: Path) -> None:
    """Together they have a part's bytes, or more by the last one; all of them come, in order."""
    texts = ["x" * length for length in (1, 2_000, 300, 400, 500, 9_000, 1, 2)]
    batch = await begun(store, tmp_path, *texts)
    sizes: list[list[int]] = []
    last = None
    while found := await BatchStore(store).pending(batch.id, last, 32):
        sizes.append([len(line.body) for line in found])
        last = found[-1]
    assert sum(map(len, sizes)) == len(texts)
    assert all(sum(read[:-1]) < PART for read in sizes)
    assert len(sizes) > 1


async def test_files_have_a_number(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small they are; another user's don't count."""
    given = config(tmp_path)
    files = FileStore(store, given)
    monkeypatch.setattr(file_store, "MAX_FILES", 2)
    ann = Principal(tenant="local", user="ann", scopes=frozenset({"*"}))
    made = [await files.add([b"x"], "in", None, who) for who in (LOCAL, ann, LOCAL)]
    with pytest.raises(ProviderInvalidRequest, match="2 files"):
        await files.add([b"x"], "in", None, LOCAL)
    wanted = CreateBatch(made[0].id, "/v1/chat/completions", "24h")
    with pytest.raises(ProviderInvalidRequest, match="2 files"):
        await BatchStore(store).create(wanted, given, LOCAL)
    await files.delete(made[2].id, LOCAL)
    assert (await BatchStore(store).create(wanted, given, LOCAL)).status == "validating"

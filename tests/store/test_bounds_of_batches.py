"""Batches whose lines are long: what is read and written at a time is bounded by bytes, and
whatever is large or many goes some at a time."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.errors import ProviderInvalidRequest
from gateway.features.batches import batch_store, file_store
from gateway.features.batches.batch_store import Batch, BatchStore
from gateway.features.batches.file_store import FileStore
from gateway.features.batches.objects import CreateBatch, Line, LineReader, answered
from gateway.server.principal import LOCAL, Principal
from gateway.store import Store
from tests.store.writes import Killed, count, dies, watched
from tests.support.batches import line
from tests.support.state import config

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
    with monkeypatch.context() as patched:
        writes = watched(store, patched, "file_parts")
        await batches.finish(await batches.move(batch.id, "finalizing"))
    ended = await batches.get(batch.id, LOCAL)
    found = await content(store, tmp_path, ended.object["error_file_id" if failed else "output_file_id"])
    assert b"".join(found) == b"\n".join((*lines, b""))
    assert {len(part) for part in found[:-1]} == {PART}
    assert 0 < len(found[-1]) <= PART
    assert max(writes.added) == 1


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


async def left(store: Store) -> list[int]:
    return await store.read(lambda connection: count(connection, "files", "file_parts", "batch_lines"))


async def test_a_large_file_goes_some_parts_to_a_write(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is gone for its user at once, and what a process that dies leaves goes with what has expired."""
    given = config(tmp_path)
    files = FileStore(store, given)
    monkeypatch.setattr(file_store, "REMOVED", 2)
    stays, gone = [await files.add([b"x"] * 7, "in", None, LOCAL) for _ in range(2)]
    with monkeypatch.context() as patched:
        dies(store, 2, patched)
        with pytest.raises(Killed):
            await files.delete(gone.id, LOCAL)
    assert await left(store) == [2, 7 + 3, 0]
    for read in (files.get(gone.id, LOCAL), files.delete(gone.id, LOCAL)):
        with pytest.raises(ProviderInvalidRequest, match="there is no file"):
            await read
    assert await files.size(gone.id) == -1
    assert [each.id for each in await files.page(LOCAL, None, None, 9, "asc")] == [stays.id]
    with pytest.raises(ProviderInvalidRequest, match="there is no such file"):
        await BatchStore(store).create(CreateBatch(gone.id, "/v1/chat/completions", "24h"), given, LOCAL)
    assert await batch_store.prune(store, given, time.time()) == 1
    assert await left(store) == [1, 7, 0]
    await files.delete(stays.id, LOCAL)
    assert await left(store) == [0, 0, 0]


LONG = (1, 1, 1, 4_000, 1, 9_000, 9_000, 1, 1, 1, 1, 1, 1)


async def ends(store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Batch:
    """A batch whose lines are answered, and of which writes take little at a time."""
    monkeypatch.setattr(batch_store, "REMOVED", 5)
    monkeypatch.setattr(batch_store, "REMOVED_BYTES", 10_000)
    monkeypatch.setattr(file_store, "REMOVED", 2)
    batches = BatchStore(store)
    made = await begun(store, folder, *("x" * length for length in LONG))
    for number in range(1, 1 + len(LONG)):
        await batches.answer(made.id, number, answered(str(number), 200, b'"%s"' % (b"x" * 200)), failed=False)
    return await batches.move(made.id, "finalizing")


async def test_lines_of_a_batch_that_has_ended_go_some_at_a_time(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = await ends(store, tmp_path, monkeypatch)
    writes = watched(store, monkeypatch, "batch_lines")
    await BatchStore(store).finish(batch)
    assert [gone for gone in writes.added if gone] == [-5, -2, -5, -1]


async def test_lines_that_are_read_again_go_some_at_a_time(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = await ends(store, tmp_path, monkeypatch)
    writes = watched(store, monkeypatch, "batch_lines")
    await BatchStore(store).begin_lines(batch.id)
    assert [gone for gone in writes.added if gone] == [-5, -2, -5, -1]


@pytest.mark.parametrize("after", range(14))
async def test_nothing_is_left_of_a_batch_wherever_a_process_dies(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    batches, batch = BatchStore(store), await ends(store, tmp_path, monkeypatch)
    with monkeypatch.context() as patched:
        dies(store, after, patched)
        with suppress(Killed):
            await batches.finish(batch)
    with monkeypatch.context() as patched:
        dies(store, after // 2, patched)  # and once more
        with suppress(Killed):
            await batches.finish(batch)
    await batches.finish(batch)
    await batch_store.prune(store, config(tmp_path), time.time())
    ended = await batches.get(batch.id, LOCAL)
    assert ended.object["status"] == "completed"
    found = await content(store, tmp_path, ended.object["output_file_id"])
    assert b"".join(found).count(b"\n") == len(LONG)
    assert await left(store) == [2, 1 + len(found), 0], "with the input's"

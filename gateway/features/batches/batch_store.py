"""Batches in the store, and their lines, each of which gets one answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from sqlalchemy import Connection, Row, bindparam, text

from gateway.errors import ProviderInvalidRequest, ProviderRateLimit
from gateway.features.batches import file_store
from gateway.features.batches.file_store import PART, new_file_id
from gateway.features.batches.objects import (
    OPEN,
    CreateBatch,
    Fault,
    Line,
    Status,
    batch_object,
    decode_kept,
    unanswered,
)
from gateway.features.batches.settings import Batches
from gateway.server.principal import Principal
from gateway.wire.chat import decode, encode

if TYPE_CHECKING:
    from gateway.config import Config
    from gateway.store import Store

MAX_OPEN = 32
"""The most open batches of one user."""
FETCHED = {"yield_per": 8}
"""How many lines come from the database at a time: long ones aren't all in memory."""
REMOVED, REMOVED_BYTES = 1000, 4 * 1024 * 1024
"""The most lines, and about the most bytes of them, that one write removes."""

State = Status | Literal["expiring"]
"""A batch's status in the store. `expiring`: it ran out of time; clients see `finalizing` until its files are there."""

UNFINISHED: tuple[State, ...] = (*OPEN, "expiring")
ENDED: dict[State, tuple[Status, str | None]] = {
    "finalizing": ("completed", None),
    "cancelling": ("cancelled", "batch_cancelled"),
    "expiring": ("expired", "batch_expired"),
}
"""Status while a batch's files are written → its final status, and the error of lines without an answer."""


@dataclass(frozen=True, slots=True)
class Batch:
    """object: as clients get it. principal: its creator, without the limits of the key."""

    id: str
    status: State
    object: dict[str, Any]
    principal: Principal
    files_seconds: int

    @property
    def over(self) -> bool:
        return self.status not in UNFINISHED


@dataclass(frozen=True, slots=True)
class Pending:
    """A line without an answer."""

    number: int
    model: str
    custom_id: str
    body: bytes


class BatchStore:
    """Shows each user only their own batches. Methods without a principal are for the runner."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def now(self) -> int:
        """Seconds since 1970."""
        return int(self._store.clock.now() + self._store.clock.behind())

    async def create(self, wanted: CreateBatch, config: Config, principal: Principal) -> Batch:
        """Raises ProviderInvalidRequest without the input file or with too many files, ProviderRateLimit with too many
        open batches."""
        after = wanted.output_expires_after
        id = f"batch_{uuid4().hex}"
        object = batch_object(wanted, id, self.now())
        row = {
            **_owner(principal),
            "id": id,
            "key": principal.key,
            "created_at": object["created_at"],
            "status": object["status"],
            "object": encode(object).decode(),
            "output_id": "",
            "error_id": "",
            "files_seconds": after.seconds if after is not None else int(config.section(Batches).days * 86400),
        }

        def work(connection: Connection) -> Batch:
            owner = _owner(principal)
            found = connection.execute(_INPUT, {**owner, "id": wanted.input_file_id}).scalar_one_or_none()
            if found != "batch":
                why = "there is no such file" if found is None else f"a file for {found} can't be the input of a batch"
                raise ProviderInvalidRequest(f"input_file_id: {why}", code="invalid_file", param="input_file_id")
            if connection.execute(_COUNT, {**owner, "open": UNFINISHED}).scalar_one() >= MAX_OPEN:
                raise ProviderRateLimit(f"{MAX_OPEN} batches are open: wait until one ends, or cancel one")
            file_store.check_count(connection, principal)
            connection.execute(_ADD, row)
            return _batch(connection.execute(_GET_ANY, {"id": id}).one())

        return await self._store.write(work)

    async def get(self, id: str, principal: Principal) -> Batch:
        """Raises ProviderInvalidRequest (404)."""
        row = await self._store.read(
            lambda connection: connection.execute(_GET, {**_owner(principal), "id": id}).one_or_none()
        )
        if row is None:
            raise ProviderInvalidRequest(f"there is no batch {id!r}", code="batch_not_found", status=404)
        return _batch(row)

    async def page(self, principal: Principal, after: str | None, limit: int) -> list[Batch]:
        """At most `limit` batches, newest first. Raises ProviderInvalidRequest if there is no batch `after`."""
        values = {**_owner(principal), "limit": limit, "created_at": 2**62, "id": ""}
        if after is not None:
            values |= {"created_at": (await self.get(after, principal)).object["created_at"], "id": after}
        return await self._store.read(lambda connection: [_batch(row) for row in connection.execute(_PAGE, values)])

    async def open(self) -> list[str]:
        """The ids of all batches that haven't ended, oldest first."""
        return await self._store.read(
            lambda connection: list(connection.execute(_OPEN, {"open": UNFINISHED}).scalars())
        )

    async def load(self, id: str) -> Batch:
        return await self._store.read(lambda connection: _batch(connection.execute(_GET_ANY, {"id": id}).one()))

    async def move(self, id: str, status: State, **changes: Any) -> Batch:
        """Changes the status and other fields of an open batch; a batch that has ended doesn't change."""

        def work(connection: Connection) -> Batch:
            batch = _batch(connection.execute(_GET_ANY, {"id": id}).one())
            if batch.over or (batch.status == "cancelling" and status != "cancelling"):
                return batch
            shown = "finalizing" if status == "expiring" else status
            object = {**batch.object, "status": shown, **changes}
            connection.execute(_MOVE, {"id": id, "status": status, "object": _stored(object)})
            return _batch(connection.execute(_GET_ANY, {"id": id}).one())

        return await self._store.write(work)

    # Lines

    async def begin_lines(self, id: str) -> None:
        """Removes lines that an earlier process may have read from the input file."""

        await _remove_lines(self._store, id)
        await self._store.write(lambda connection: connection.execute(_NO_BYTES, {"id": id}))

    async def add_lines(self, id: str, lines: Sequence[Line]) -> None:
        rows = [
            {"id": id, "number": line.number, "model": line.model, "request": line.request.decode()} for line in lines
        ]
        size = sum(len(line.request) for line in lines)

        def work(connection: Connection) -> None:
            connection.execute(_ADD_LINE, rows)
            connection.execute(_MORE_BYTES, {"id": id, "bytes": size})

        if rows:
            await self._store.write(work)

    async def begin(self, id: str, total: int) -> Batch:
        """Marks the input file as read: its lines can be answered."""
        now = self.now()

        def work(connection: Connection) -> None:
            connection.execute(_TOTAL, {"id": id, "total": total})

        await self._store.write(work)
        return await self.move(id, "in_progress", in_progress_at=now)

    async def fail(self, id: str, faults: list[Fault], total: int) -> None:
        """Ends the batch because its input file is invalid."""
        await self.begin_lines(id)
        await self._store.write(lambda connection: connection.execute(_TOTAL, {"id": id, "total": total}))
        errors = {"object": "list", "data": faults}
        await self.move(id, "failed", failed_at=self.now(), errors=errors)

    async def pending(self, id: str, after: Pending | None, limit: int) -> list[Pending]:
        """The next lines without an answer, grouped by model: at most `limit`, and few if they are long."""
        model, number = (after.model, after.number) if after is not None else ("", -1)
        values = {"id": id, "model": model, "number": number, "limit": limit}

        def work(connection: Connection) -> list[Pending]:
            found: list[Pending] = []
            size = 0
            with connection.execute(_PENDING, values, execution_options=FETCHED) as rows:
                for row in rows:
                    line = decode_kept(row.request)
                    found.append(Pending(row.number, row.model, line.custom_id, bytes(line.body)))
                    size += len(row.request)
                    if size >= PART:
                        break
            return found

        return await self._store.read(work)

    async def room(self, principal: Principal, maximum: int) -> bool:
        """Whether the user's files, and the lines and answers of open batches, have fewer than `maximum` bytes."""
        return await self._store.read(lambda connection: file_store.used(connection, principal)) < maximum

    async def answer(self, id: str, number: int, line: bytes, *, failed: bool) -> None:
        """Stores a line's answer, unless it has one."""
        values = {"id": id, "number": number, "answer": line.decode(), "failed": int(failed), "bytes": len(line)}

        def work(connection: Connection) -> None:
            if connection.execute(_ANSWER, values).rowcount:
                connection.execute(_COUNT_ANSWER, values)

        await self._store.write(work)

    async def finish(self, batch: Batch) -> None:
        """Writes the files of answers and errors in the order of the input, then ends the batch.

        May be called again after a process died in it: the files are invisible until the batch has ended. Each call
        writes its own files, and the last call to begin wins.
        """
        ended, why = ENDED[batch.status]
        output, errors = _File(new_file_id()), _File(new_file_id())

        def begin(connection: Connection) -> list[str] | None:
            row = connection.execute(_GET_ANY, {"id": batch.id}).one()
            if _batch(row).over:
                return None
            earlier = [id for id in (row.output_id, row.error_id) if id]
            file_store.forget(connection, earlier)
            connection.execute(_FILES, {"id": batch.id, "output_id": output.id, "error_id": errors.id})
            return earlier

        if (earlier := await self._store.write(begin)) is None:
            return
        await file_store.remove(self._store, earlier)
        await self._write_lines(batch.id, output, errors, why)
        now = self.now()

        def end(connection: Connection) -> bool:
            row = connection.execute(_GET_ANY, {"id": batch.id}).one()
            if _batch(row).over or row.output_id != output.id:
                file_store.forget(connection, [output.id, errors.id])
                return False
            object = {**decode(row.object), "status": ended, f"{ended}_at": now}
            for file, name in ((output, "output"), (errors, "error")):
                file.flush(connection)
                if file.size:
                    object[f"{name}_file_id"] = file.id
                    connection.execute(file_store.ADD, _file_row(batch, file, name, now))
            connection.execute(_MOVE, {"id": batch.id, "status": ended, "object": _stored(object)})
            connection.execute(_NO_BYTES, {"id": batch.id})
            return True

        if await self._store.write(end):
            await _remove_lines(self._store, batch.id)
        else:
            await file_store.remove(self._store, [output.id, errors.id])

    async def _write_lines(self, id: str, output: _File, errors: _File, why: str | None) -> None:
        """Writes all answers, but for the last part of each file. why: the error of lines without an answer."""
        after: int | None = -1
        while after is not None:
            after, answers, faults = await self._store.read(_reader(id, after, why))
            for file, lines in ((output, answers), (errors, faults)):
                file.add(lines)
                while file.has_part:
                    await self._store.write(file.flush)


class _File:
    """A file that is being written."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.size = 0
        self._rest = bytearray()
        self._number = 0

    @property
    def has_part(self) -> bool:
        return len(self._rest) >= PART

    def add(self, lines: bytes) -> None:
        self._rest += lines

    def flush(self, connection: Connection) -> None:
        """Writes a part, or what is left of one."""
        if self._rest:
            part = bytes(self._rest[:PART])
            file_store.add_part(connection, self.id, self._number, part)
            self.size += len(part)
            self._number += 1
            del self._rest[:PART]


async def prune(store: Store, config: Config, now: float) -> int:
    """Removes expired files, batches that have ended and were created more than `batches.days` ago, and what a process
    that died has left of ended ones.

    Returns how many files and batches it removed.
    """
    gone = await file_store.prune(store, now)
    ended = {"open": UNFINISHED, "oldest": int(now - config.section(Batches).days * 86400), "most": REMOVED}
    for id in await store.read(lambda connection: list(connection.execute(_LEFT, ended).scalars())):
        await _remove_lines(store, id)
    while went := await store.write(lambda connection: connection.execute(_PRUNE, ended).rowcount):
        gone += went
    return gone


async def _remove_lines(store: Store, id: str) -> None:
    """Some at a time, since all other writes wait for each of these."""

    def last_of_some(connection: Connection) -> int | None:
        last, size = None, 0
        with connection.execute(_SIZES, {"id": id, "most": REMOVED}, execution_options=FETCHED) as rows:
            for row in rows:
                last = row.number
                size += row.size
                if size >= REMOVED_BYTES:
                    break
        return last

    while (last := await store.read(last_of_some)) is not None:
        await store.write(lambda connection, last=last: connection.execute(_DELETE_LINES, {"id": id, "last": last}))  # type: ignore[misc]


def _reader(id: str, after: int, why: str | None) -> Callable[[Connection], tuple[int | None, bytes, bytes]]:
    """The number of the last line that was read, None if there is none, and what comes next in both files: PART bytes,
    or more by the last line."""

    def work(connection: Connection) -> tuple[int | None, bytes, bytes]:
        last, answers, faults = None, bytearray(), bytearray()
        with connection.execute(_RESULTS, {"id": id, "after": after}, execution_options=FETCHED) as rows:
            for row in rows:
                last = row.number
                if row.answer is not None:
                    (faults if row.failed else answers).extend(row.answer.encode() + b"\n")
                elif why is not None:
                    faults.extend(unanswered(decode_kept(row.request).custom_id, why) + b"\n")
                if len(answers) + len(faults) >= PART:
                    break
        return last, bytes(answers), bytes(faults)

    return work


def _file_row(batch: Batch, file: _File, name: str, now: int) -> dict[str, Any]:
    return {
        **_owner(batch.principal),
        "id": file.id,
        "created_at": now,
        "expires_at": now + batch.files_seconds,
        "purpose": "batch_output",
        "filename": f"{batch.id}_{name}.jsonl",
        "bytes": file.size,
    }


def _batch(row: Row[Any]) -> Batch:
    counts = {"total": row.total, "completed": row.completed, "failed": row.failed}
    return Batch(
        id=row.id,
        status=row.status,
        object={**decode(row.object), "request_counts": counts},
        principal=Principal(row.tenant, row.owner, frozenset(("models",)), row.key),
        files_seconds=row.files_seconds,
    )


def _stored(object: dict[str, Any]) -> str:
    return encode({name: value for name, value in object.items() if name != "request_counts"}).decode()


def _owner(principal: Principal) -> dict[str, Any]:
    return {"tenant": principal.tenant, "owner": principal.user}


_INPUT = text("SELECT purpose FROM files WHERE id = :id AND tenant = :tenant AND owner = :owner AND expires_at > 0")
_COUNT = text(
    "SELECT count(*) FROM batches WHERE tenant = :tenant AND owner = :owner AND status IN :open"
).bindparams(bindparam("open", expanding=True))  # fmt: skip
_ADD = text(
    "INSERT INTO batches (id, tenant, owner, key, created_at, status, object, output_id, error_id, files_seconds, "
    "total, completed, failed, bytes) VALUES (:id, :tenant, :owner, :key, :created_at, :status, :object, :output_id, "
    ":error_id, :files_seconds, 0, 0, 0, 0)"
)
_GET = text("SELECT * FROM batches WHERE id = :id AND tenant = :tenant AND owner = :owner")
_GET_ANY = text("SELECT * FROM batches WHERE id = :id")
_PAGE = text(
    "SELECT * FROM batches WHERE tenant = :tenant AND owner = :owner AND (created_at, id) < (:created_at, :id) "
    "ORDER BY created_at DESC, id DESC LIMIT :limit"
)
_OPEN = text("SELECT id FROM batches WHERE status IN :open ORDER BY created_at, id").bindparams(
    bindparam("open", expanding=True)
)
_MOVE = text("UPDATE batches SET status = :status, object = :object WHERE id = :id")
_TOTAL = text("UPDATE batches SET total = :total WHERE id = :id")
_SIZES = text(
    "SELECT number, length(request) + coalesce(length(answer), 0) AS size FROM batch_lines WHERE batch_id = :id "
    "ORDER BY number LIMIT :most"
)
_DELETE_LINES = text("DELETE FROM batch_lines WHERE batch_id = :id AND number <= :last")
_ADD_LINE = text(
    "INSERT INTO batch_lines (batch_id, number, model, request, failed) VALUES (:id, :number, :model, :request, 0)"
)
_PENDING = text(
    "SELECT number, model, request FROM batch_lines WHERE batch_id = :id AND answer IS NULL "
    "AND (model, number) > (:model, :number) ORDER BY model, number LIMIT :limit"
)
_ANSWER = text(
    "UPDATE batch_lines SET answer = :answer, failed = :failed "
    "WHERE batch_id = :id AND number = :number AND answer IS NULL"
)
_COUNT_ANSWER = text(
    "UPDATE batches SET completed = completed + 1 - :failed, failed = failed + :failed, bytes = bytes + :bytes "
    "WHERE id = :id"
)
_RESULTS = text(
    "SELECT number, request, answer, failed FROM batch_lines WHERE batch_id = :id AND number > :after ORDER BY number"
)
_FILES = text("UPDATE batches SET output_id = :output_id, error_id = :error_id WHERE id = :id")
_MORE_BYTES = text("UPDATE batches SET bytes = bytes + :bytes WHERE id = :id")
_NO_BYTES = text("UPDATE batches SET bytes = 0 WHERE id = :id")
_LEFT = text(
    "SELECT id FROM batches WHERE status NOT IN :open "
    "AND EXISTS (SELECT 1 FROM batch_lines WHERE batch_id = batches.id)"
).bindparams(bindparam("open", expanding=True))
_PRUNE = text(
    "DELETE FROM batches WHERE id IN "
    "(SELECT id FROM batches WHERE created_at < :oldest AND status NOT IN :open LIMIT :most)"
).bindparams(bindparam("open", expanding=True))

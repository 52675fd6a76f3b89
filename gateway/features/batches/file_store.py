"""Files in the store, in parts, so that no file has to fit into memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from sqlalchemy import Connection, Row, text

from gateway.errors import ProviderInvalidRequest
from gateway.features.batches.settings import Batches
from gateway.server.principal import Principal

if TYPE_CHECKING:
    from gateway.config import Config
    from gateway.store import Store

PART = 1024 * 1024
"""Bytes of a part."""
LONGEST_NAME = 255
MAX_FILES = 50_000
"""Of one user: the bytes of all are summed when another one comes."""
REMOVED = 4
"""The most parts that one write removes: all other writes wait for it."""

File = Row[Any]
"""A row of the table `files`."""


def new_file_id() -> str:
    return f"file-{uuid4().hex}"


class FileStore:
    """Shows each user only their own files."""

    def __init__(self, store: Store, config: Config) -> None:
        self._store = store
        self._config = config

    async def add(self, parts: list[bytes], filename: str, seconds: int | None, principal: Principal) -> File:
        """Stores an input file. seconds: until it expires; None: as configured.

        Raises ProviderInvalidRequest if the user's files would become too many or too large.
        """
        maximum = self._config.section(Batches).storage_max_bytes
        now = int(self._store.clock.now() + self._store.clock.behind())
        row = {
            **_owner(principal),
            "id": new_file_id(),
            "created_at": now,
            "expires_at": now + (seconds or int(self._config.section(Batches).days * 86400)),
            "purpose": "batch",
            "filename": "".join(filter(str.isprintable, filename))[:LONGEST_NAME] or "file",
            "bytes": sum(map(len, parts)),
        }

        def work(connection: Connection) -> File:
            check_count(connection, principal)
            if used(connection, principal) + row["bytes"] > maximum:
                message = f"the user's files may have {maximum} bytes (batches.storage_max_bytes); delete some"
                raise ProviderInvalidRequest(message, code="storage_limit_exceeded", param="file")
            for number, data in enumerate(parts):
                add_part(connection, row["id"], number, data)
            connection.execute(ADD, row)
            return connection.execute(_GET, {**_owner(principal), "id": row["id"]}).one()

        return await self._store.write(work)

    async def get(self, id: str, principal: Principal) -> File:
        """Raises ProviderInvalidRequest (404)."""
        row = await self._store.read(
            lambda connection: connection.execute(_GET, {**_owner(principal), "id": id}).one_or_none()
        )
        if row is None:
            raise _missing(id)
        return row

    async def size(self, id: str) -> int:
        """Bytes of a file; -1 if it is gone."""
        found = await self._store.read(lambda connection: connection.execute(_SIZE, {"id": id}).scalar())
        return -1 if found is None else int(found)

    async def parts(self, id: str) -> AsyncIterator[bytes]:
        """The file's content; it ends early if the file is deleted meanwhile."""
        number = 0
        while (data := await self._store.read(lambda connection, at=number: _part(connection, id, at))) is not None:  # type: ignore[misc]
            yield data
            number += 1

    async def page(
        self, principal: Principal, purpose: str | None, after: str | None, limit: int, order: str
    ) -> list[File]:
        """At most `limit` files. Raises ProviderInvalidRequest if there is no file `after`."""
        begin = None if after is None else await self.get(after, principal)
        values = {**_owner(principal), "limit": limit}
        conditions = ["tenant = :tenant", "owner = :owner", "expires_at > 0"]
        if purpose is not None:
            conditions.append("purpose = :purpose")
            values["purpose"] = purpose
        if begin is not None:
            conditions.append(f"(created_at, id) {'>' if order == 'asc' else '<'} (:created_at, :id)")
            values |= {"created_at": begin.created_at, "id": begin.id}
        way = "ASC" if order == "asc" else "DESC"
        wanted = text(
            f"SELECT * FROM files WHERE {' AND '.join(conditions)} "  # noqa: S608 - made of the texts above
            f"ORDER BY created_at {way}, id {way} LIMIT :limit"
        )
        return await self._store.read(lambda connection: list(connection.execute(wanted, values)))

    async def delete(self, id: str, principal: Principal) -> None:
        """Raises ProviderInvalidRequest (404)."""

        def work(connection: Connection) -> bool:
            if not connection.execute(_HIDE, {**_owner(principal), "id": id}).rowcount:
                raise _missing(id)
            return _remove_some(connection, id)

        if await self._store.write(work):
            await remove(self._store, [id])


def check_count(connection: Connection, principal: Principal) -> None:
    """Raises ProviderInvalidRequest unless the user may have more files."""
    if connection.execute(_COUNT, _owner(principal)).scalar_one() >= MAX_FILES:
        message = f"a user may have {MAX_FILES} files; delete some"
        raise ProviderInvalidRequest(message, code="storage_limit_exceeded", param="file")


def used(connection: Connection, principal: Principal) -> int:
    """Bytes of a user's files, and of the lines and answers in running batches."""
    return int(connection.execute(_USED, _owner(principal)).scalar_one())


def add_part(connection: Connection, id: str, number: int, data: bytes) -> None:
    connection.execute(_ADD_PART, {"id": id, "number": number, "data": data})


def forget(connection: Connection, ids: Iterable[str]) -> None:
    """Leaves parts that belong to no file to `prune`, should `remove` not come to its end."""
    for id in ids:
        connection.execute(_FORGET, {"id": id})


async def remove(store: Store, ids: Iterable[str]) -> None:
    """Some parts to a write. Whatever is left of a hidden or forgotten file goes with the next `prune`."""
    for id in ids:
        while await store.write(lambda connection, id=id: _remove_some(connection, id)):  # type: ignore[misc]
            pass


async def prune(store: Store, now: float) -> int:
    """Removes expired files; returns their number."""
    gone = 0
    expired = {"now": int(now)}
    while ids := await store.read(lambda connection: list(connection.execute(_EXPIRED, expired).scalars())):
        await remove(store, ids)
        gone += len(ids)
    return gone


def _remove_some(connection: Connection, id: str) -> bool:
    """Whether there may be more."""
    connection.execute(_HIDE_ANY, {"id": id})
    if connection.execute(_DELETE_PARTS, {"id": id, "most": REMOVED}).rowcount == REMOVED:
        return True
    connection.execute(_DELETE, {"id": id})
    return False


def _part(connection: Connection, id: str, number: int) -> bytes | None:
    data = connection.execute(_PART, {"id": id, "number": number}).scalar_one_or_none()
    return None if data is None else bytes(data)


def _owner(principal: Principal) -> dict[str, Any]:
    return {"tenant": principal.tenant, "owner": principal.user}


def _missing(id: str) -> ProviderInvalidRequest:
    return ProviderInvalidRequest(f"there is no file {id!r}", code="file_not_found", param="file_id", status=404)


# A file whose `expires_at` is 0 is hidden: its parts are being removed. Until then, it counts.
ADD = text(
    "INSERT INTO files (id, tenant, owner, created_at, expires_at, purpose, filename, bytes) "
    "VALUES (:id, :tenant, :owner, :created_at, :expires_at, :purpose, :filename, :bytes)"
)
_GET = text("SELECT * FROM files WHERE id = :id AND tenant = :tenant AND owner = :owner AND expires_at > 0")
_SIZE = text("SELECT bytes FROM files WHERE id = :id AND expires_at > 0")
_HIDE = text(
    "UPDATE files SET expires_at = 0 WHERE id = :id AND tenant = :tenant AND owner = :owner AND expires_at > 0"
)
_HIDE_ANY = text("UPDATE files SET expires_at = 0 WHERE id = :id AND expires_at > 0")
_FORGET = text(
    "INSERT INTO files (id, tenant, owner, created_at, expires_at, purpose, filename, bytes) "
    "VALUES (:id, '', '', 0, 0, '', '', 0) ON CONFLICT (id) DO NOTHING"
)
_DELETE = text("DELETE FROM files WHERE id = :id")
_EXPIRED = text("SELECT id FROM files WHERE expires_at < :now LIMIT 20")
_ADD_PART = text("INSERT INTO file_parts (file_id, number, data) VALUES (:id, :number, :data)")
_PART = text("SELECT data FROM file_parts WHERE file_id = :id AND number = :number")
_DELETE_PARTS = text(
    "DELETE FROM file_parts WHERE file_id = :id AND number IN "
    "(SELECT number FROM file_parts WHERE file_id = :id ORDER BY number LIMIT :most)"
)
_COUNT = text("SELECT count(*) FROM files WHERE tenant = :tenant AND owner = :owner")
_USED = text(
    "SELECT (SELECT coalesce(sum(bytes), 0) FROM files WHERE tenant = :tenant AND owner = :owner)"
    " + (SELECT coalesce(sum(bytes), 0) FROM batches WHERE tenant = :tenant AND owner = :owner)"
)

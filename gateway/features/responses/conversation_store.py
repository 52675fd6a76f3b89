"""Conversations: their items are those of responses, so a turn is stored once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Row, TextClause, bindparam, text

from gateway.errors import ProviderInvalidRequest
from gateway.features.responses import item_rows
from gateway.features.responses.item_rows import Page, Paging
from gateway.features.responses.response_store import LONGEST, REMOVED, ResponseStore, Stored, remove, some
from gateway.features.responses.wire.answer import new_id
from gateway.features.responses.wire.conversations import Written, with_ids, written
from gateway.features.responses.wire.request import Item
from gateway.server.principal import Principal
from gateway.wire.chat import decode, encode

if TYPE_CHECKING:
    from gateway.config import Config
    from gateway.store import Store

MAXIMUM = 10_000
"""The most conversations of one user; the least recently used are removed first."""
JOINED = 64 * 1024
"""A row without a response takes further items until it has this many characters."""
_DELETED, _EXPIRED = 0, -1
"""`used_at` of a conversation that is hidden while it is removed."""


class ConversationStore:
    """Shows each user only their own conversations. Their items count as stored responses do."""

    def __init__(self, store: Store, responses: ResponseStore) -> None:
        self._store = store
        self._responses = responses

    async def create(self, items: list[Item], metadata: dict[str, str], principal: Principal) -> dict[str, Any]:
        """The new conversation."""
        now = int(self._store.clock.now() + self._store.clock.behind())
        row = {
            **_owner(principal),
            "id": new_id("conv"),
            "created_at": now,
            "used_at": now,
            "metadata": encode(metadata).decode(),
        }

        def work(connection: Connection) -> tuple[str | None, list[str]]:
            connection.execute(_ADD, row)
            others = {**_owner(principal), "id": row["id"], "most": MAXIMUM - 1}
            gone = list(connection.execute(_LEAST_USED, others).scalars())
            for id in gone:
                connection.execute(_HIDE, {"id": id, "at": _DELETED})
            return self._add(connection, row["id"], items, principal)[0] if items else None, gone

        turn, gone = await self._store.write(work)
        if turn is not None:
            await self._responses.make_room(turn, principal)
        for id in gone:
            await _remove(self._store, id)
        return {"id": row["id"], "object": "conversation", "created_at": now, "metadata": metadata}

    async def get(self, id: str, principal: Principal) -> dict[str, Any]:
        """Raises ProviderInvalidRequest (404)."""
        row = await self._store.read(lambda connection: _conversation(connection, id, principal))
        return _object(row)

    async def update(self, id: str, metadata: dict[str, str], principal: Principal) -> dict[str, Any]:
        """Raises ProviderInvalidRequest (404)."""

        def work(connection: Connection) -> Row[Any]:
            _conversation(connection, id, principal)
            connection.execute(_METADATA, {"id": id, "metadata": encode(metadata).decode()})
            return _conversation(connection, id, principal)

        return _object(await self._store.write(work))

    async def delete(self, id: str, principal: Principal) -> None:
        """Its responses stay, without it. Raises ProviderInvalidRequest (404)."""

        def work(connection: Connection) -> None:
            _conversation(connection, id, principal)
            connection.execute(_HIDE, {"id": id, "at": _DELETED})

        await self._store.write(work)
        await _remove(self._store, id)

    async def items(self, id: str, principal: Principal, *, cut: bool = False) -> list[Item]:
        """What a model is shown, oldest first; see `item_rows.newest`. Raises ProviderInvalidRequest."""

        def work(connection: Connection) -> list[Item]:
            _conversation(connection, id, principal)
            if connection.execute(_TURNS, {"id": id}).scalar_one() > LONGEST:
                message = f"{id}: the conversation has more than {LONGEST} turns"
                raise ProviderInvalidRequest(message, param="conversation")
            return item_rows.newest(connection, id, cut=cut)

        return await self._store.read(work)

    async def page(self, id: str, principal: Principal, asked: Paging) -> Page:
        """Raises ProviderInvalidRequest."""

        def work(connection: Connection) -> Page:
            _conversation(connection, id, principal)
            return item_rows.page(connection, "conversation", id, asked)

        return await self._store.read(work)

    async def item(self, id: str, item: str, principal: Principal) -> Item:
        """Raises ProviderInvalidRequest (404)."""

        def work(connection: Connection) -> Item:
            _conversation(connection, id, principal)
            return item_rows.item(connection, _key(connection, id, item))

        return await self._store.read(work)

    async def add(self, id: str, items: list[Item], principal: Principal) -> list[Item]:
        """Takes the items; returns them with their ids. Raises ProviderInvalidRequest (404)."""

        def work(connection: Connection) -> tuple[str | None, list[Written]]:
            _conversation(connection, id, principal)
            return self._add(connection, id, items, principal)

        turn, made = await self._store.write(work)
        if turn is not None:
            await self._responses.make_room(turn, principal)
        return [decode(json) for _, json in made]

    def _add(
        self, connection: Connection, id: str, items: list[Item], principal: Principal
    ) -> tuple[str | None, list[Written]]:
        """What was stored, and the id of the row that has it."""
        ids = [item["id"] for item in items if isinstance(item.get("id"), str)]
        made = written(with_ids(items, {*item_rows.known(connection, id, ids)}))
        items.clear()  # from here on their JSON alone is in memory: they may be long
        last = connection.execute(_LAST, {"id": id}).one_or_none()
        if last is not None and last.without_response and last.size < JOINED:
            item_rows.append(connection, last.id, made)
            connection.execute(_GROWN, {"id": last.id, "size": sum(len(item) for _, item in made)})
            return last.id, made
        return self._responses.insert(connection, Stored({}, made, id), principal), made

    async def remove(self, id: str, item: str, principal: Principal) -> dict[str, Any]:
        """The conversation without the item. If the model wrote it, its response loses it, too.

        Raises ProviderInvalidRequest (404).
        """

        def work(connection: Connection) -> Row[Any]:
            found = _conversation(connection, id, principal)
            key = _key(connection, id, item)
            item_rows.remove(connection, key)
            if key.place >= item_rows.OUTPUTS:
                _take_from_response(connection, key.response, item)
            return found

        return _object(await self._store.write(work))


async def prune(store: Store, config: Config, now: float) -> int:
    """Removes conversations unused for `server.responses_days`, with all items and responses, and what a process that
    died has left of deleted ones; returns their number."""
    oldest = int(now - config.server.responses_days * 86400)
    gone = 0
    await store.write(lambda connection: connection.execute(_EXPIRE, {"oldest": oldest, "at": _EXPIRED}))
    while rows := await store.read(lambda connection: list(connection.execute(_HIDDEN))):
        for row in rows:
            await _remove(store, row.id, with_responses=row.used_at == _EXPIRED)
        gone += len(rows)
    return gone


def _conversation(connection: Connection, id: str, principal: Principal) -> Row[Any]:
    """Raises ProviderInvalidRequest (404)."""
    row = connection.execute(_GET, {**_owner(principal), "id": id}).one_or_none()
    if row is None:
        message = f"there is no conversation {id!r}: it was never created, or it has expired"
        raise ProviderInvalidRequest(message, code="conversation_not_found", param="conversation", status=404)
    return row


def _object(row: Row[Any]) -> dict[str, Any]:
    return {
        "id": row.id,
        "object": "conversation",
        "created_at": row.created_at,
        "metadata": decode(row.metadata),
    }


def _key(connection: Connection, id: str, item: str) -> Row[Any]:
    """Raises ProviderInvalidRequest (404)."""
    key = item_rows.find(connection, "conversation", id, item)
    if key is None:
        raise ProviderInvalidRequest(f"{id}: there is no item {item!r}", code="item_not_found", status=404)
    return key


def _take_from_response(connection: Connection, id: str, item: str) -> None:
    written: str = connection.execute(_RESPONSE, {"id": id}).scalar_one()
    if written:  # else the response was deleted, and its items alone are left
        response = decode(written)
        response["output"] = [each for each in response["output"] if each.get("id") != item]
        connection.execute(_REWRITE, {"id": id, "response": encode(response).decode()})


async def _remove(store: Store, id: str, *, with_responses: bool = False) -> None:
    """Removes a hidden conversation, some rows to a write. with_responses: else they stay, without it."""
    await _each(store, _ITEMS, id, remove)
    await _each(store, _ROWS, id, remove if with_responses else _free)
    await store.write(lambda connection: connection.execute(_DELETE, {"id": id}))


async def _each(
    store: Store, rows: TextClause, id: str, change: Callable[[Store, list[str]], Awaitable[object]]
) -> None:
    """Changes rows of a conversation, so that `rows` finds them no longer."""
    values = {"id": id, "most": REMOVED}
    while ids := await store.read(lambda connection: some(connection.execute(rows, values))):
        await change(store, ids)


async def _free(store: Store, ids: list[str]) -> None:
    await store.write(lambda connection: connection.execute(_FREE, {"ids": ids}))


def _owner(principal: Principal) -> dict[str, Any]:
    return {"tenant": principal.tenant, "owner": principal.user}


_ADD = text(
    "INSERT INTO conversations (id, tenant, owner, created_at, used_at, metadata) "
    "VALUES (:id, :tenant, :owner, :created_at, :used_at, :metadata)"
)
_GET = text("SELECT * FROM conversations WHERE id = :id AND tenant = :tenant AND owner = :owner AND used_at > 0")
_LEAST_USED = text(
    "SELECT id FROM conversations WHERE tenant = :tenant AND owner = :owner AND id <> :id AND used_at > 0 "
    "ORDER BY used_at DESC, id LIMIT 100 OFFSET :most"
)
_METADATA = text("UPDATE conversations SET metadata = :metadata WHERE id = :id")
_TURNS = text("SELECT count(*) FROM responses WHERE conversation = :id")
_LAST = text(
    "SELECT id, response = '' AS without_response, size FROM responses WHERE conversation = :id "
    "ORDER BY turn DESC, created_at DESC, id DESC LIMIT 1"
)
_GROWN = text("UPDATE responses SET size = size + :size WHERE id = :id")
_RESPONSE = text("SELECT response FROM responses WHERE id = :id")
_REWRITE = text("UPDATE responses SET response = :response WHERE id = :id")
_HIDE = text("UPDATE conversations SET used_at = :at WHERE id = :id")
_EXPIRE = text("UPDATE conversations SET used_at = :at WHERE used_at < :oldest AND used_at > 0")
_HIDDEN = text("SELECT id, used_at FROM conversations WHERE used_at <= 0 LIMIT 20")
_ITEMS = text("SELECT id, size FROM responses WHERE conversation = :id AND response = '' LIMIT :most")
_ROWS = text("SELECT id, size FROM responses WHERE conversation = :id LIMIT :most")
_FREE = text("UPDATE responses SET conversation = NULL WHERE id IN :ids").bindparams(bindparam("ids", expanding=True))
_DELETE = text("DELETE FROM conversations WHERE id = :id")

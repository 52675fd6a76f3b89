"""Stored responses, and the conversations that they form."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Row, bindparam, text

from gateway.errors import ProviderInvalidRequest
from gateway.features.responses import item_rows
from gateway.features.responses.item_rows import Page, Paging
from gateway.features.responses.wire.answer import new_id
from gateway.features.responses.wire.conversations import Written, written
from gateway.features.responses.wire.request import Item
from gateway.server.principal import Principal
from gateway.wire.chat import decode, encode

if TYPE_CHECKING:
    from gateway.config import Config
    from gateway.store import Store

LONGEST = 1000
"""Responses in one conversation."""
REMOVED, REMOVED_BYTES = 200, 512 * 1024
"""The most responses, and about the most bytes of them, that one write removes: all other writes wait for it."""


@dataclass(frozen=True, slots=True)
class Stored:
    """response: the object that clients get; {} for items that came without one. items: the input of its own turn, as
    JSON, so that a long one isn't in memory twice.

    conversation: the id of the one that it belongs to.
    """

    response: dict[str, Any]
    items: Sequence[Written] = ()
    conversation: str | None = None


class ResponseStore:
    """Shows each user only their own responses, and keeps at most `max_bytes` of each: removes the oldest first."""

    def __init__(self, store: Store, max_bytes: int) -> None:
        self._store = store
        self._max_bytes = max_bytes

    async def put(self, stored: Stored, principal: Principal, *, again: bool = False) -> None:
        """Stores a response, or its new state, and adds it to its conversation, unless that was deleted meanwhile.

        again: it was stored before; if it was deleted since, it stays deleted.
        """

        def work(connection: Connection) -> str | None:
            if again and connection.execute(_LEFT, {"id": stored.response["id"]}).first() is None:
                return None
            return self.insert(connection, stored, principal)

        if (id := await self._store.write(work)) is not None:
            await self.make_room(id, principal)

    def insert(self, connection: Connection, stored: Stored, principal: Principal) -> str | None:
        """`put` inside a write, which `make_room` follows. Returns the id of what is stored."""
        owner = {"tenant": principal.tenant, "owner": principal.user}
        now = int(self._store.clock.now() + self._store.clock.behind())
        conversation = stored.conversation
        if conversation is not None:
            used = connection.execute(_USE, {**owner, "id": conversation, "now": now}).rowcount
            if not used:
                conversation = None
            if not (used or stored.response):
                return None
        response = encode(stored.response).decode() if stored.response else ""
        items = stored.items
        outputs = written(stored.response["output"] if stored.response else ())
        id: str = stored.response.get("id") or new_id("items")
        began = stored.response.get("created_at")
        row = {
            **owner,
            "id": id,
            "created_at": now if began is None else int(began + self._store.clock.behind()),
            "previous_id": stored.response.get("previous_response_id"),
            "response": response,
            "size": len(response) + sum(len(item) for _, item in (*items, *outputs)),
            "conversation": conversation,
        }
        known = connection.execute(_KNOWN, {"id": id}).first() is not None
        connection.execute(_PUT, row)
        if not known:
            item_rows.add(connection, id, items)
        item_rows.replace_outputs(connection, id, outputs)
        return id

    async def make_room(self, id: str, principal: Principal) -> None:
        """Removes the user's oldest responses, but never `id`, until all have at most `max_bytes`.

        They are counted and chosen beside the writes, so that nobody else waits for that: two callers choose the same.
        """
        values = {"tenant": principal.tenant, "owner": principal.user, "id": id, "most": REMOVED}

        def too_old(connection: Connection) -> list[str]:
            rows = connection.execute(_OVER, {**values, "maximum": self._max_bytes}).all()
            return some(rows, rows[0].over) if rows else []

        while ids := await self._store.read(too_old):
            await remove(self._store, ids)

    async def get(self, id: str, principal: Principal) -> Stored:
        """Without its items. Raises ProviderInvalidRequest (404)."""
        return await self._store.read(lambda connection: Stored(decode(_row(connection, id, principal).response)))

    async def items(self, id: str, principal: Principal, asked: Paging) -> Page:
        """A page of those that the response was given. Raises ProviderInvalidRequest."""

        def work(connection: Connection) -> Page:
            _row(connection, id, principal)
            return item_rows.page(connection, "response", id, asked)

        return await self._store.read(work)

    async def conversation(self, id: str, principal: Principal, *, cut: bool = False) -> list[Item]:
        """The items of every turn up to the response, its output included; see `item_rows.newest`.

        Raises ProviderInvalidRequest.
        """
        rows = await self._store.read(lambda connection: _rows(connection, id, principal, cut=cut))
        param = "previous_response_id"
        if not rows:
            message = f"{param}: there is no response {id!r}: it was never stored, or it has expired"
            raise ProviderInvalidRequest(message, code="previous_response_not_found", param=param)
        if len(rows) > LONGEST:
            raise ProviderInvalidRequest(f"{param}: the conversation has more than {LONGEST} responses", param=param)
        return [item for response, items in reversed(rows) for item in (*items, *response["output"])]

    async def named(self, ids: Collection[str], principal: Principal) -> dict[str, Item]:
        """The user's items that have these ids. Raises ProviderInvalidRequest if they are too many."""
        owner = {"tenant": principal.tenant, "owner": principal.user}
        return await self._store.read(lambda connection: item_rows.named(connection, ids, owner))

    async def delete(self, id: str, principal: Principal) -> None:
        """Its items stay in its conversation, if it has one. Raises ProviderInvalidRequest (404)."""
        owner = {"id": id, "tenant": principal.tenant, "owner": principal.user}

        def work(connection: Connection) -> None:
            if _row(connection, id, principal).conversation is None:
                connection.execute(_DELETE, owner)
            else:
                connection.execute(_KEEP_ITEMS, {"id": id})

        await self._store.write(work)


async def prune(store: Store, config: Config, now: float) -> int:
    """Removes responses older than `server.responses_days` that belong to no conversation; returns their number."""
    oldest = int(now - config.server.responses_days * 86400)
    gone = 0
    expired = {"oldest": oldest, "most": REMOVED}
    while ids := await store.read(lambda connection: some(connection.execute(_EXPIRED, expired))):
        gone += await remove(store, ids)
    return gone


def some(rows: Iterable[Row[tuple[str, int]]], enough: int = REMOVED_BYTES) -> list[str]:
    """The ids of the first rows, until they have `enough` bytes, or as many as one write may change."""
    ids: list[str] = []
    size = 0
    for row in rows:
        if size >= min(enough, REMOVED_BYTES):
            break
        ids.append(row.id)
        size += row.size
    return ids


async def remove(store: Store, ids: list[str]) -> int:
    return await store.write(lambda connection: connection.execute(_DELETE_SOME, {"ids": ids}).rowcount)


def _row(connection: Connection, id: str, principal: Principal) -> Row[Any]:
    """Raises ProviderInvalidRequest (404)."""
    row = connection.execute(_GET, {"id": id, "tenant": principal.tenant, "owner": principal.user}).one_or_none()
    if row is None:
        raise ProviderInvalidRequest(f"there is no response {id!r}", code="response_not_found", status=404)
    return row


def _rows(
    connection: Connection, id: str, principal: Principal, *, cut: bool
) -> list[tuple[dict[str, Any], list[Item]]]:
    """The response and its items, its predecessor and so on, at most one more than LONGEST; see `item_rows.newest`."""
    found: list[tuple[dict[str, Any], list[Item]]] = []
    next_id: str | None = id
    count = size = 0
    while next_id is not None and len(found) <= LONGEST:
        owner = {"id": next_id, "tenant": principal.tenant, "owner": principal.user}
        row = connection.execute(_GET, owner).one_or_none()
        if row is None:
            # Deleted or expired: the conversation begins after it.
            break
        given, length = item_rows.measure_given(connection, next_id)
        count, size = count + given, size + length + len(row.response)
        if cut and (count > item_rows.MAX_ITEMS or size > item_rows.MAX_BYTES):
            break
        item_rows.check_size(id, count, size, "previous_response_id")
        found.append((decode(row.response), item_rows.given_to(connection, next_id)))
        next_id = row.previous_id
    return found


_PUT = text(
    "INSERT INTO responses (id, tenant, owner, created_at, previous_id, response, size, conversation, turn) "
    "VALUES (:id, :tenant, :owner, :created_at, :previous_id, :response, :size, :conversation, "
    "(SELECT coalesce(max(turn), 0) + 1 FROM responses WHERE conversation = :conversation)) "
    "ON CONFLICT (id) DO UPDATE SET response = excluded.response, size = excluded.size"
)
# One statement, since PostgreSQL shows each what the others have removed by then.
_KEPT = "(SELECT sum(size) FROM responses WHERE tenant = :tenant AND owner = :owner)"
_OVER = text(
    f"SELECT id, size, {_KEPT} - :maximum AS over FROM responses "  # noqa: S608 - made of the text above
    f"WHERE tenant = :tenant AND owner = :owner AND id <> :id AND {_KEPT} > :maximum "
    "ORDER BY created_at, id LIMIT :most"
)
_EXPIRED = text("SELECT id, size FROM responses WHERE created_at < :oldest AND conversation IS NULL LIMIT :most")
_DELETE_SOME = text("DELETE FROM responses WHERE id IN :ids").bindparams(bindparam("ids", expanding=True))
_GET = text(
    "SELECT previous_id, response, conversation FROM responses "
    "WHERE id = :id AND tenant = :tenant AND owner = :owner AND response <> ''"
)
_USE = text(
    "UPDATE conversations SET used_at = :now WHERE id = :id AND tenant = :tenant AND owner = :owner AND used_at > 0"
)
_LEFT = text("SELECT 1 FROM responses WHERE id = :id AND response <> ''")
_KNOWN = text("SELECT 1 FROM responses WHERE id = :id")
_KEEP_ITEMS = text(
    "UPDATE responses SET response = '', size = "
    "(SELECT coalesce(sum(size), 0) FROM response_items WHERE response = :id) WHERE id = :id"
)
_DELETE = text("DELETE FROM responses WHERE id = :id AND tenant = :tenant AND owner = :owner")

"""Stored responses, and the conversations that they form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Row, text

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

        def work(connection: Connection) -> None:
            if not again or connection.execute(_LEFT, {"id": stored.response["id"]}).first() is not None:
                self.insert(connection, stored, principal)

        await self._store.write(work)

    def insert(self, connection: Connection, stored: Stored, principal: Principal) -> None:
        """`put` inside a write."""
        owner = {"tenant": principal.tenant, "owner": principal.user}
        now = int(self._store.clock.now() + self._store.clock.behind())
        conversation = stored.conversation
        if conversation is not None:
            used = connection.execute(_USE, {**owner, "id": conversation, "now": now}).rowcount
            if not used:
                conversation = None
            if not (used or stored.response):
                return
        response = encode(stored.response).decode() if stored.response else ""
        items = stored.items
        outputs = written(stored.response["output"] if stored.response and conversation is not None else ())
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
        if connection.execute(_SIZE, owner).scalar_one() > self._max_bytes:
            connection.execute(_PRUNE_OLDEST, {**owner, "id": id, "most": self._max_bytes})

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
    while went := await store.write(lambda connection: connection.execute(_PRUNE_SOME, {"oldest": oldest}).rowcount):
        gone += went
    return gone


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
        count += item_rows.count_given(connection, next_id)
        size += row.size
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
_SIZE = text("SELECT coalesce(sum(size), 0) FROM responses WHERE tenant = :tenant AND owner = :owner")
_PRUNE_OLDEST = text(
    "DELETE FROM responses WHERE id <> :id AND id IN ("
    " SELECT id FROM ("
    "  SELECT id, sum(size) OVER (ORDER BY CASE WHEN id = :id THEN 0 ELSE 1 END, created_at DESC, id DESC) AS so_far"
    "  FROM responses WHERE tenant = :tenant AND owner = :owner) AS newest"
    " WHERE so_far > :most)"
)
_PRUNE_SOME = text(
    "DELETE FROM responses WHERE id IN "
    "(SELECT id FROM responses WHERE created_at < :oldest AND conversation IS NULL LIMIT 200)"
)
_GET = text(
    "SELECT previous_id, response, size, conversation FROM responses "
    "WHERE id = :id AND tenant = :tenant AND owner = :owner AND response <> ''"
)
_USE = text("UPDATE conversations SET used_at = :now WHERE id = :id AND tenant = :tenant AND owner = :owner")
_LEFT = text("SELECT 1 FROM responses WHERE id = :id AND response <> ''")
_KNOWN = text("SELECT 1 FROM responses WHERE id = :id")
_KEEP_ITEMS = text(
    "UPDATE responses SET response = '', size = "
    "(SELECT coalesce(sum(size), 0) FROM response_items WHERE response = :id) WHERE id = :id"
)
_DELETE = text("DELETE FROM responses WHERE id = :id AND tenant = :tenant AND owner = :owner")

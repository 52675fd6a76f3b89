"""Stored responses, and the conversations that they form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, text

from gateway.errors import ProviderInvalidRequest
from gateway.server.principal import Principal
from gateway.wire.chat import decode, encode
from gateway.wire.responses.answer import new_id
from gateway.wire.responses.request import Item

if TYPE_CHECKING:
    from gateway.config import Config
    from gateway.store import Store

LONGEST = 1000
"""Responses in one conversation."""


@dataclass(frozen=True, slots=True)
class Stored:
    """response: the object that clients get; {} for items that came without one. items: the input of its own turn.

    conversation: the id of the one that it belongs to.
    """

    response: dict[str, Any]
    items: list[Item]
    conversation: str | None = None


class ResponseStore:
    """Shows each user only their own responses, and keeps at most `max_bytes` of each: removes the oldest first."""

    def __init__(self, store: Store, max_bytes: int) -> None:
        self._store = store
        self._max_bytes = max_bytes

    async def put(self, stored: Stored, principal: Principal) -> None:
        """Stores a response, or its new state, and adds it to its conversation, unless that was deleted meanwhile."""
        await self._store.write(lambda connection: self.insert(connection, stored, principal))

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
        items = encode(stored.items).decode()
        began = stored.response.get("created_at")
        row = {
            **owner,
            "id": stored.response.get("id") or new_id("items"),
            "created_at": now if began is None else int(began + self._store.clock.behind()),
            "previous_id": stored.response.get("previous_response_id"),
            "response": response,
            "items": items,
            "size": len(response) + len(items),
            "conversation": conversation,
        }
        connection.execute(_PUT, row)
        if connection.execute(_SIZE, owner).scalar_one() > self._max_bytes:
            connection.execute(_PRUNE_OLDEST, {**owner, "id": row["id"], "most": self._max_bytes})

    async def get(self, id: str, principal: Principal) -> Stored:
        """Raises ProviderInvalidRequest (404)."""
        rows = await self._store.read(lambda connection: _rows(connection, id, principal, 1))
        if not rows:
            raise ProviderInvalidRequest(f"there is no response {id!r}", code="response_not_found", status=404)
        return rows[0]

    async def conversation(self, id: str, principal: Principal) -> list[Item]:
        """The items of every turn up to the response, its output included. Raises ProviderInvalidRequest."""
        rows = await self._store.read(lambda connection: _rows(connection, id, principal, LONGEST + 1))
        param = "previous_response_id"
        if not rows:
            message = f"{param}: there is no response {id!r}: it was never stored, or it has expired"
            raise ProviderInvalidRequest(message, code="previous_response_not_found", param=param)
        if len(rows) > LONGEST:
            raise ProviderInvalidRequest(f"{param}: the conversation has more than {LONGEST} responses", param=param)
        return [item for stored in reversed(rows) for item in (*stored.items, *stored.response["output"])]

    async def delete(self, id: str, principal: Principal) -> None:
        """Its items stay in its conversation, if it has one. Raises ProviderInvalidRequest (404)."""
        owner = {"id": id, "tenant": principal.tenant, "owner": principal.user}

        def work(connection: Connection) -> bool:
            row = connection.execute(_GET, owner).one_or_none()
            if row is None:
                return False
            if row.conversation is None:
                connection.execute(_DELETE, owner)
            else:
                items = encode([*decode(row.items), *decode(row.response)["output"]]).decode()
                connection.execute(_KEEP_ITEMS, {"id": id, "items": items, "size": len(items)})
            return True

        if not await self._store.write(work):
            raise ProviderInvalidRequest(f"there is no response {id!r}", code="response_not_found", status=404)


async def prune(store: Store, config: Config, now: float) -> int:
    """Removes responses older than `server.responses_days` that belong to no conversation; returns their number."""
    oldest = int(now - config.server.responses_days * 86400)
    gone = 0
    while went := await store.write(lambda connection: connection.execute(_PRUNE_SOME, {"oldest": oldest}).rowcount):
        gone += went
    return gone


def _rows(connection: Connection, id: str, principal: Principal, most: int) -> list[Stored]:
    """The response, its predecessor and so on, at most `most`."""
    found: list[Stored] = []
    next_id: str | None = id
    while next_id is not None and len(found) < most:
        owner = {"id": next_id, "tenant": principal.tenant, "owner": principal.user}
        row = connection.execute(_GET, owner).one_or_none()
        if row is None:
            # Deleted or expired: the conversation begins after it.
            break
        found.append(Stored(decode(row.response), decode(row.items)))
        next_id = row.previous_id
    return found


_PUT = text(
    "INSERT INTO responses (id, tenant, owner, created_at, previous_id, response, items, size, conversation, turn) "
    "VALUES (:id, :tenant, :owner, :created_at, :previous_id, :response, :items, :size, :conversation, "
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
    "SELECT previous_id, response, items, conversation FROM responses "
    "WHERE id = :id AND tenant = :tenant AND owner = :owner AND response <> ''"
)
_USE = text("UPDATE conversations SET used_at = :now WHERE id = :id AND tenant = :tenant AND owner = :owner")
_KEEP_ITEMS = text("UPDATE responses SET response = '', items = :items, size = :size WHERE id = :id")
_DELETE = text("DELETE FROM responses WHERE id = :id AND tenant = :tenant AND owner = :owner")

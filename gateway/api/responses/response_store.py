"""Stored responses, and the conversations that they form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, text

from gateway.errors import ProviderInvalidRequest
from gateway.server.principal import Principal
from gateway.wire.chat import decode, encode
from gateway.wire.responses.request import Item

if TYPE_CHECKING:
    from gateway.config import Config
    from gateway.store import Store

LONGEST = 1000
"""Responses in one conversation."""


@dataclass(frozen=True, slots=True)
class Stored:
    """response: the object that clients get. items: the input of its own turn."""

    response: dict[str, Any]
    items: list[Item]


class ResponseStore:
    """Shows each user their own responses alone, and keeps at most `max_bytes` of each user: the oldest go first."""

    def __init__(self, store: Store, max_bytes: int) -> None:
        self._store = store
        self._max_bytes = max_bytes

    async def put(self, stored: Stored, principal: Principal) -> None:
        """Stores a response, or its new state."""
        response, items = encode(stored.response).decode(), encode(stored.items).decode()
        owner = {"tenant": principal.tenant, "owner": principal.user}
        row = {
            **owner,
            "id": stored.response["id"],
            "created_at": int(stored.response["created_at"] + self._store.clock.behind()),
            "previous_id": stored.response["previous_response_id"],
            "response": response,
            "items": items,
            "size": len(response) + len(items),
        }
        most = {**owner, "id": row["id"], "most": self._max_bytes}

        def work(connection: Connection) -> None:
            connection.execute(_PUT, row)
            if connection.execute(_SIZE, owner).scalar_one() > self._max_bytes:
                connection.execute(_PRUNE_OLDEST, most)

        await self._store.write(work)

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
        """Raises ProviderInvalidRequest (404)."""
        owner = {"id": id, "tenant": principal.tenant, "owner": principal.user}
        if not await self._store.write(lambda connection: connection.execute(_DELETE, owner).rowcount):
            raise ProviderInvalidRequest(f"there is no response {id!r}", code="response_not_found", status=404)


async def prune(store: Store, config: Config, now: float) -> int:
    """Removes responses older than `server.responses_days`; returns their number."""
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
    "INSERT INTO responses (id, tenant, owner, created_at, previous_id, response, items, size) "
    "VALUES (:id, :tenant, :owner, :created_at, :previous_id, :response, :items, :size) "
    "ON CONFLICT (id) DO UPDATE SET response = excluded.response, size = excluded.size"
)
_SIZE = text("SELECT coalesce(sum(size), 0) FROM responses WHERE tenant = :tenant AND owner = :owner")
_PRUNE_OLDEST = text(
    "DELETE FROM responses WHERE id <> :id AND id IN ("
    " SELECT id FROM ("
    "  SELECT id, sum(size) OVER (ORDER BY CASE WHEN id = :id THEN 0 ELSE 1 END, created_at DESC, id) AS so_far"
    "  FROM responses WHERE tenant = :tenant AND owner = :owner) AS newest"
    " WHERE so_far > :most)"
)
_PRUNE_SOME = text("DELETE FROM responses WHERE id IN (SELECT id FROM responses WHERE created_at < :oldest LIMIT 200)")
_GET = text("SELECT previous_id, response, items FROM responses WHERE id = :id AND tenant = :tenant AND owner = :owner")
_DELETE = text("DELETE FROM responses WHERE id = :id AND tenant = :tenant AND owner = :owner")

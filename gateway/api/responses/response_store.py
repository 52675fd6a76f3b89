"""The responses that are kept, and the conversations that they form."""

from __future__ import annotations

import time
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
class Kept:
    """response: the object as clients get it. items: the input of its own turn."""

    response: dict[str, Any]
    items: list[Item]


class Responses:
    """Everybody sees their own alone."""

    def __init__(self, store: Store, days: float) -> None:
        self._store = store
        self._days = days

    async def put(self, kept: Kept, principal: Principal) -> None:
        """Keeps a response, or its new state; those that are too old go."""
        row = {
            "id": kept.response["id"],
            "tenant": principal.tenant,
            "owner": principal.user,
            "created_at": kept.response["created_at"],
            "previous_id": kept.response["previous_response_id"],
            "response": encode(kept.response).decode(),
            "items": encode(kept.items).decode(),
        }
        oldest = int(time.time() - self._days * 86400)

        def work(connection: Connection) -> None:
            connection.execute(_PUT, row)
            connection.execute(_PRUNE, {"oldest": oldest})

        await self._store.write(work)

    async def get(self, id: str, principal: Principal) -> Kept:
        """Raises ProviderInvalidRequest (404)."""
        rows = await self._store.read(lambda connection: _rows(connection, id, principal, 1))
        if not rows:
            raise ProviderInvalidRequest(f"there is no response {id!r}", code="response_not_found", status=404)
        return rows[0]

    async def conversation(self, id: str, principal: Principal) -> list[Item]:
        """Every item up to the response and its output. Raises ProviderInvalidRequest."""
        rows = await self._store.read(lambda connection: _rows(connection, id, principal, LONGEST + 1))
        param = "previous_response_id"
        if not rows:
            message = f"{param}: there is no response {id!r}; it was not stored, or it is too old"
            raise ProviderInvalidRequest(message, code="previous_response_not_found", param=param)
        if len(rows) > LONGEST:
            raise ProviderInvalidRequest(f"{param}: the conversation has more than {LONGEST} responses", param=param)
        return [item for kept in reversed(rows) for item in (*kept.items, *kept.response["output"])]

    async def delete(self, id: str, principal: Principal) -> None:
        """Raises ProviderInvalidRequest (404)."""
        owner = {"id": id, "tenant": principal.tenant, "owner": principal.user}
        if not await self._store.write(lambda connection: connection.execute(_DELETE, owner).rowcount):
            raise ProviderInvalidRequest(f"there is no response {id!r}", code="response_not_found", status=404)


async def prune(store: Store, config: Config, now: float) -> int:
    """Removes those that are older than `server.responses_days`, also while none is made; how many."""
    oldest = int(now - config.server.responses_days * 86400)
    gone = 0
    while went := await store.write(lambda connection: connection.execute(_PRUNE_SOME, {"oldest": oldest}).rowcount):
        gone += went
    return gone


def _rows(connection: Connection, id: str, principal: Principal, most: int) -> list[Kept]:
    """The response, the one before it, and so on."""
    found: list[Kept] = []
    next_id: str | None = id
    while next_id is not None and len(found) < most:
        owner = {"id": next_id, "tenant": principal.tenant, "owner": principal.user}
        row = connection.execute(_GET, owner).one_or_none()
        if row is None:
            # Deleted or too old: the conversation begins after it.
            break
        found.append(Kept(decode(row.response), decode(row.items)))
        next_id = row.previous_id
    return found


_PUT = text(
    "INSERT INTO responses (id, tenant, owner, created_at, previous_id, response, items) "
    "VALUES (:id, :tenant, :owner, :created_at, :previous_id, :response, :items) "
    "ON CONFLICT (id) DO UPDATE SET response = excluded.response"
)
_PRUNE = text("DELETE FROM responses WHERE created_at < :oldest")
_PRUNE_SOME = text("DELETE FROM responses WHERE id IN (SELECT id FROM responses WHERE created_at < :oldest LIMIT 200)")
_GET = text("SELECT previous_id, response, items FROM responses WHERE id = :id AND tenant = :tenant AND owner = :owner")
_DELETE = text("DELETE FROM responses WHERE id = :id AND tenant = :tenant AND owner = :owner")

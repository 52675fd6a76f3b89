"""The stored sessions of objects: lists and deletes them, without a gateway."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sqlalchemy import delete, func, select

from gateway.config import Config
from gateway.errors import ProviderInvalidRequest
from gateway.features.ctx.errors import Busy
from gateway.features.ctx.frames import Scope
from gateway.features.ctx.journal import EVERYONE, run_table, session_table, stored
from gateway.features.ctx.objects import ObjectName
from gateway.services import store_url
from gateway.store import Store

if TYPE_CHECKING:
    from sqlalchemy import Connection

TENANT = "local"
MAXIMUM = 1000


@dataclass(frozen=True, slots=True)
class Row:
    object: str
    session: str
    scope: str
    state: str
    messages: int
    updated_at: str
    room: str = ""
    """The id of an agent's session."""


async def sessions(config: Config, name: ObjectName | None) -> list[Row]:
    """One's own and the shared sessions of an object, or of all; the newest first. Raises ProviderUnavailable."""
    store = await Store.open(store_url(config))
    try:
        rows = await store.read(lambda connection: [*_of_models(connection, name), *_of_agents(connection, name)])
    finally:
        await store.aclose()
    return sorted(rows, key=lambda row: row.updated_at, reverse=True)


async def remove(config: Config, name: ObjectName, session: str, scope: Scope) -> None:
    """Deletes a session. Raises NotFound, Busy while it is active, ProviderInvalidRequest for an agent's."""
    if name.kind == "agent":
        raise ProviderInvalidRequest(f"a session of {name} is a room: ctxgate room release ROOM")
    store = await Store.open(store_url(config))
    try:
        await store.write(lambda connection: _remove(connection, name, session, scope))
    finally:
        await store.aclose()


def _of_models(connection: Connection, name: ObjectName | None) -> list[Row]:
    table = session_table
    count = select(func.count()).where(run_table.c.session == table.c.id).scalar_subquery()
    query = select(table, count.label("messages")).where(table.c.owner.in_((EVERYONE, os.geteuid())))
    if name is not None:
        query = query.where(table.c.object == str(name))
    return [
        Row(row.object, row.name, row.scope, row.state, int(row.messages), _moment(row.updated_at))
        for row in connection.execute(query.order_by(table.c.updated_at.desc()).limit(MAXIMUM))
    ]


def _of_agents(connection: Connection, name: ObjectName | None) -> list[Row]:
    if name is not None and name.kind != "agent":
        return []
    from gateway.features.rooms import transaction
    from gateway.features.rooms.states import OPEN

    found: list[Row] = []
    offset, more = 0, True
    while more and len(found) < MAXIMUM:
        rooms, more = transaction.rooms(connection, TENANT, OPEN, MAXIMUM, offset)
        offset += len(rooms)
        for room in rooms:
            object = room.metadata.get("object")
            if isinstance(object, str) and (name is None or object == str(name)):
                session = str(room.metadata.get("name", "")).removeprefix(f"{object.partition('/')[2]}-")
                asked, moment = transaction.tasks(connection, room.id), room.updated_at[:19] + "Z"
                found.append(Row(object, session, "room", room.status, asked, moment, room.id))
    return found[:MAXIMUM]


def _remove(connection: Connection, name: ObjectName, session: str, scope: Scope) -> None:
    found = stored(connection, name, session, scope)
    if found.state == "active":
        raise Busy(f"session {session} is active: wait, or cancel its run")
    # ON DELETE CASCADE deletes its runs and events.
    connection.execute(delete(session_table).where(session_table.c.id == found.id))


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

"""Deletes rooms that were released long ago, with their messages, events and files."""

from __future__ import annotations

import asyncio
import logging
import shutil
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING

from sqlalchemy import Connection, delete, select

from gateway.config import Config
from gateway.features.agents.settings import Rooms
from gateway.features.rooms.tables import EVENTS, MESSAGES, ROOMS
from gateway.features.rooms.transaction import timestamp
from gateway.features.rooms.workspace import folder

if TYPE_CHECKING:
    from gateway.store import Store

REMOVED = 50
"""The most rows that one write removes: all other writes wait for it."""

log = logging.getLogger("ctxgate")


async def prune(store: Store, config: Config, now: float) -> int:
    """Deletes the rooms released more than `rooms.released_days` ago, some rows to a write. Returns how many."""
    days = config.section(Rooms).released_days
    if days is None:
        return 0
    until = timestamp(datetime.fromtimestamp(now - days * 86400, UTC))
    deleted = 0
    while (found := await store.read(lambda connection: _oldest(connection, until))) is not None:
        tenant, room = found
        # Files first: once the row is deleted, nothing leads to them.
        await asyncio.to_thread(shutil.rmtree, folder(config, tenant, room), onerror=_log_failure)
        while await store.write(lambda connection, room=room: _delete_some(connection, room)):  # type: ignore[misc]
            pass
        deleted += 1
    return deleted


def _log_failure(_: object, path: str, error: tuple[type[BaseException], BaseException, TracebackType]) -> None:
    if not isinstance(error[1], FileNotFoundError):  # most rooms have no files
        log.warning("can't delete a file of a deleted room: %s: %s", path, error[1])


def _oldest(connection: Connection, until: str) -> tuple[str, str] | None:
    released = select(ROOMS.c.tenant, ROOMS.c.id).where(ROOMS.c.status == "released", ROOMS.c.updated_at < until)
    row = connection.execute(released.limit(1)).first()
    return None if row is None else (row.tenant, row.id)


def _delete_some(connection: Connection, room: str) -> bool:
    """Events and messages first: until the room itself goes, the next `prune` finds it. Whether there is more."""
    for table in (EVENTS, MESSAGES):
        mine = table.c.room_id == room
        some = select(table.c.seq).where(mine).order_by(table.c.seq).limit(REMOVED)
        if connection.execute(delete(table).where(mine, table.c.seq.in_(some))).rowcount:
            return True
    connection.execute(delete(ROOMS).where(ROOMS.c.id == room))
    return False

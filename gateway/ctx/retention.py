"""Sessions that nobody has talked in for long leave the store, with their runs and events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, delete, select

from gateway.config import Config
from gateway.ctx.journal import session_table

if TYPE_CHECKING:
    from gateway.store import Store

BATCH = 20
"""Sessions of one transaction."""


async def prune(store: Store, config: Config, now: float) -> int:
    """Those without a message for `ctx.session_days`; how many."""
    days = config.ctx.session_days
    if days is None:
        return 0
    until = now - days * 86400
    gone = 0
    while went := await store.write(lambda connection: _delete(connection, until)):
        gone += went
    return gone


def _delete(connection: Connection, until: float) -> int:
    table = session_table
    old = select(table.c.id).where(table.c.state != "active", table.c.updated_at < until).limit(BATCH)
    # Their runs and events go with them: ON DELETE CASCADE.
    return int(connection.execute(delete(table).where(table.c.id.in_(old))).rowcount)

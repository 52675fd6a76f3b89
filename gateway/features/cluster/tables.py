"""A cluster's tables in PostgreSQL: its engines, its nodes, the key of its engines."""

from __future__ import annotations

from collections.abc import Iterable
from secrets import token_urlsafe

import msgspec
from sqlalchemy import Connection, text

from gateway.features.cluster.values import EngineRow, NodeRow

CHANNEL = "ctxgate_cluster"


def key(connection: Connection) -> str:
    """The key that engines require; the first gateway creates it."""
    connection.execute(
        text("INSERT INTO cluster_keys (name, value) VALUES ('engines', :value) ON CONFLICT (name) DO NOTHING"),
        {"value": token_urlsafe(32)},
    )
    return str(connection.execute(text("SELECT value FROM cluster_keys WHERE name = 'engines'")).scalar_one())


def callers(connection: Connection) -> str | None:
    """The callers' keys, in JSON; None before the first."""
    return connection.execute(text("SELECT value FROM cluster_keys WHERE name = 'callers'")).scalar()


def lock_callers(connection: Connection) -> str:
    """Like `callers`, but "" before the first, and locks them until this transaction ends."""
    connection.execute(
        text("INSERT INTO cluster_keys (name, value) VALUES ('callers', '') ON CONFLICT (name) DO NOTHING")
    )
    return str(
        connection.execute(text("SELECT value FROM cluster_keys WHERE name = 'callers' FOR UPDATE")).scalar_one()
    )


def replace_callers(connection: Connection, written: str) -> None:
    connection.execute(text("UPDATE cluster_keys SET value = :value WHERE name = 'callers'"), {"value": written})
    _tell(connection)


def engines(connection: Connection) -> list[EngineRow]:
    rows = connection.execute(
        text("SELECT id, model, node, host, url, launch, slots, state, places FROM cluster_engines")
    )
    return [EngineRow(*row) for row in rows]


def nodes(connection: Connection) -> list[NodeRow]:
    rows = connection.execute(text("SELECT node FROM cluster_nodes ORDER BY id")).scalars()
    return [msgspec.json.decode(row, type=NodeRow) for row in rows]


def replace_engines(connection: Connection, rows: Iterable[EngineRow]) -> None:
    connection.execute(text("DELETE FROM cluster_engines"))
    for row in rows:
        connection.execute(_ENGINE, msgspec.structs.asdict(row))
    _tell(connection)


def replace_nodes(connection: Connection, rows: Iterable[NodeRow]) -> None:
    connection.execute(text("DELETE FROM cluster_nodes"))
    for row in rows:
        connection.execute(_NODE, {"id": row.id, "node": msgspec.json.encode(row).decode()})


def _tell(connection: Connection) -> None:
    connection.execute(text("SELECT pg_notify(:channel, :what)"), {"channel": CHANNEL, "what": '{"type":"changed"}'})


_ENGINE = text(
    "INSERT INTO cluster_engines (id, model, node, host, url, launch, slots, state, places) "
    "VALUES (:id, :model, :node, :host, :url, :launch, :slots, :state, :places)"
)
_NODE = text("INSERT INTO cluster_nodes (id, node) VALUES (:id, :node)")

"""Rooms, messages and events as models of records that can be read: their rows as SQL, with the columns of records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Select, Text, cast, func, literal, literal_column, null, select, type_coerce
from sqlalchemy.dialects.postgresql import JSONB

from gateway.features.agents.tools.records import Model, View
from gateway.features.rooms.tables import EVENTS, MESSAGES, ROOMS

TEXT = {"type": "string"}
ID = {"type": ["string", "null"]}
NUMBER = {"type": "integer"}
OBJECT = {"type": "object"}
ANY: dict[str, Any] = {}

Columns = dict[str, ColumnElement[Any]]


def _whole(column: ColumnElement[Any], dialect: str) -> ColumnElement[Any]:
    """A column of JSON, as a value within JSON. PostgreSQL's jsonb can't contain NUL, which json can."""
    if dialect == "postgresql":
        return cast(func.replace(cast(column, Text), "\\u0000", "\\ufffd"), JSONB)
    return func.json(type_coerce(column, Text))


def _part(key: str, dialect: str) -> ColumnElement[Any]:
    """A key of a room's `data`."""
    if dialect == "postgresql":
        return _whole(ROOMS.c.data, dialect)[key]
    return func.json_extract(type_coerce(ROOMS.c.data, Text), f"$.{key}")


def _object(fields: Columns, dialect: str) -> ColumnElement[Any]:
    named = [part for name, column in fields.items() for part in (literal_column(f"'{name}'"), column)]
    return func.jsonb_build_object(*named) if dialect == "postgresql" else func.json_object(*named)


def _rows(
    model: str, dialect: str, tenant: str, system: Columns, order: list[ColumnElement[Any]], fields: Columns
) -> Select[Any]:
    """system: `id`, `created_at` and `updated_at`. order: of creation."""
    return select(
        func.row_number().over(order_by=order).label("seq"),
        cast(literal(tenant), Text).label("tenant"),
        cast(literal(model), Text).label("model"),
        literal_column("1").label("version"),
        *(column.label(name) for name, column in system.items()),
        cast(null(), Text).label("trashed_at"),
        _object(fields, dialect).label("data"),
    ).where(ROOMS.c.tenant == tenant)


def _rooms(dialect: str, tenant: str) -> Select[Any]:
    stored = ("purpose", "metadata", "actors", "tool_policy", "mounts", "summary_text", "last_error")
    return _rows(
        *("rooms", dialect, tenant),
        {"id": ROOMS.c.id, "created_at": ROOMS.c.rented_at, "updated_at": ROOMS.c.updated_at},
        [ROOMS.c.rented_at, ROOMS.c.id],
        {
            **{name: ROOMS.c[name] for name in ("user", "status", "rented_at", "last_active_at")},
            **{name: ROOMS.c[name] for name in ("queued_message_id", "running_message_id")},
            **{name: _part(name, dialect) for name in stored},
        },
    )


def _messages(dialect: str, tenant: str) -> Select[Any]:
    plain = ("room_id", "user", "author_kind", "kind", "actor_key", "in_reply_to", "status")
    return _rows(
        *("room_messages", dialect, tenant),
        {"id": MESSAGES.c.id, "created_at": MESSAGES.c.created_at, "updated_at": MESSAGES.c.created_at},
        [MESSAGES.c.created_at, MESSAGES.c.room_id, MESSAGES.c.seq],
        {
            "message_seq": MESSAGES.c.seq,
            **{name: MESSAGES.c[name] for name in plain},
            **{name: _whole(MESSAGES.c[name], dialect) for name in ("content", "metadata")},
        },
    ).join_from(MESSAGES, ROOMS)


def _events(dialect: str, tenant: str) -> Select[Any]:
    return _rows(
        *("room_events", dialect, tenant),
        {
            "id": EVENTS.c.room_id.concat(":").concat(cast(EVENTS.c.seq, Text)),
            "created_at": EVENTS.c.created_at,
            "updated_at": EVENTS.c.created_at,
        },
        [EVENTS.c.created_at, EVENTS.c.room_id, EVENTS.c.seq],
        {
            "event_seq": EVENTS.c.seq,
            **{name: EVENTS.c[name] for name in ("room_id", "event_type", "agent_key", "message_id")},
            "payload": _whole(EVENTS.c.payload, dialect),
        },
    ).join_from(EVENTS, ROOMS)


def _view(name: str, description: str, properties: Mapping[str, Any], rows: Callable[[str, str], Select[Any]]) -> View:
    schema = {"type": "object", "properties": dict(properties)}
    return View(Model(name, f"{description} Read-only.", schema), rows)


def _each(names: tuple[str, ...], schema: Mapping[str, Any]) -> dict[str, Any]:
    return {name: dict(schema) for name in names}


_ALL = (
    _view(
        "rooms",
        "The rooms of this tenant: where a model works, one message at a time.",
        {
            **_each(("user", "status", "rented_at"), TEXT),
            **_each(("last_active_at", "queued_message_id", "running_message_id", "purpose", "summary_text"), ID),
            **_each(("actors", "mounts"), {"type": "array"}),
            **_each(("tool_policy", "last_error"), ANY),
            "metadata": OBJECT,
        },
        _rooms,
    ),
    _view(
        "room_messages",
        "What was said in the rooms of this tenant, and answered.",
        {
            **_each(("room_id", "user", "author_kind", "kind", "status"), TEXT),
            **_each(("actor_key", "in_reply_to"), ID),
            "message_seq": NUMBER,
            "content": ANY,
            "metadata": OBJECT,
        },
        _messages,
    ),
    _view(
        "room_events",
        "What happened in the rooms of this tenant.",
        {
            **_each(("room_id", "event_type"), TEXT),
            **_each(("agent_key", "message_id"), ID),
            "event_seq": NUMBER,
            "payload": OBJECT,
        },
        _events,
    ),
)
VIEWS: Mapping[str, View] = {view.model.name: view for view in _ALL}
"""Name → model and rows. The tables are those of `gateway.features.rooms.tables`."""

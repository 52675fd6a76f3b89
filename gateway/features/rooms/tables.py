"""The tables of rooms. `gateway/store/migrations/versions/rooms_*.py` creates them."""

from __future__ import annotations

from sqlalchemy import JSON, Column, ForeignKey, Integer, LargeBinary, MetaData, String, Table

METADATA = MetaData()

ROOMS = Table(
    "rooms",
    METADATA,
    Column("id", String(36), primary_key=True),
    Column("tenant", String(128), nullable=False),
    Column("user", String(128), nullable=False),
    Column("status", String(16), nullable=False),
    Column("rented_at", String(32), nullable=False),
    Column("updated_at", String(32), nullable=False),
    Column("last_active_at", String(32)),
    Column("event_seq", Integer, nullable=False),
    Column("message_seq", Integer, nullable=False),
    Column("queued_message_id", String(36)),
    Column("running_message_id", String(36)),
    Column("data", JSON, nullable=False),
)

MESSAGES = Table(
    "room_messages",
    METADATA,
    Column("id", String(36), primary_key=True),
    Column("room_id", String(36), ForeignKey("rooms.id"), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("user", String(128), nullable=False),
    Column("author_kind", String(16), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("actor_key", String(128)),
    Column("in_reply_to", String(36)),
    Column("status", String(16), nullable=False),
    Column("content", JSON, nullable=False),
    Column("metadata", JSON, nullable=False),
    Column("created_at", String(32), nullable=False),
)

EVENTS = Table(
    "room_events",
    METADATA,
    Column("room_id", String(36), ForeignKey("rooms.id"), primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("event_type", String(64), nullable=False),
    Column("agent_key", String(128)),
    Column("message_id", String(36)),
    Column("payload", JSON, nullable=False),
    Column("created_at", String(32), nullable=False),
)

SECRETS = Table(
    "user_secrets",
    METADATA,
    Column("id", String(36), primary_key=True),
    Column("tenant", String(128), nullable=False),
    Column("user", String(128), nullable=False),
    Column("name", String(200), nullable=False),
    Column("provider", String(128)),
    Column("kind", String(16), nullable=False),
    Column("metadata", JSON, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    Column("created_at", String(32), nullable=False),
)

"""Rooms, their messages and events, and users' secrets."""

import sqlalchemy as sa
from alembic import op

revision = "rooms_0001"
down_revision = None
branch_labels = ("rooms",)
depends_on = None


def upgrade() -> None:
    op.create_table(
        "rooms",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("tenant", sa.String(128), nullable=False),
        sa.Column("user", sa.String(128), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("rented_at", sa.String(32), nullable=False),
        sa.Column("updated_at", sa.String(32), nullable=False),
        sa.Column("last_active_at", sa.String(32)),
        sa.Column("event_seq", sa.Integer, nullable=False),
        sa.Column("message_seq", sa.Integer, nullable=False),
        sa.Column("queued_message_id", sa.String(36)),
        sa.Column("running_message_id", sa.String(36)),
        sa.Column("data", sa.JSON, nullable=False),
    )
    op.create_index("rooms_by_tenant", "rooms", ["tenant", "rented_at"])
    op.create_index("rooms_by_status", "rooms", ["status"])
    op.create_table(
        "room_messages",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("room_id", sa.String(36), sa.ForeignKey("rooms.id"), nullable=False),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("user", sa.String(128), nullable=False),
        sa.Column("author_kind", sa.String(16), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("actor_key", sa.String(128)),
        sa.Column("in_reply_to", sa.String(36)),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("content", sa.JSON, nullable=False),
        sa.Column("metadata", sa.JSON, nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.UniqueConstraint("room_id", "seq"),
    )
    op.create_table(
        "room_events",
        sa.Column("room_id", sa.String(36), sa.ForeignKey("rooms.id"), primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("event_type", sa.String(64), nullable=False),
        sa.Column("agent_key", sa.String(128)),
        sa.Column("message_id", sa.String(36)),
        sa.Column("payload", sa.JSON, nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
    )
    op.create_table(
        "user_secrets",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("tenant", sa.String(128), nullable=False),
        sa.Column("user", sa.String(128), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("provider", sa.String(128)),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("metadata", sa.JSON, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.UniqueConstraint("tenant", "user", "name"),
    )


def downgrade() -> None:
    for table in ("user_secrets", "room_events", "room_messages", "rooms"):
        op.drop_table(table)

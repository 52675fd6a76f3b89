"""The events of one message, without a scan of the room's."""

from alembic import op

revision = "rooms_0002"
down_revision = "rooms_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("room_events_by_message", "room_events", ["room_id", "message_id"])


def downgrade() -> None:
    op.drop_index("room_events_by_message", "room_events")

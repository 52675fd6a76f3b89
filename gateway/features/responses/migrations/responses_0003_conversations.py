"""Conversations. Their items are in the rows of responses; a row of items alone has the response ''."""

import sqlalchemy as sa
from alembic import op

revision = "responses_0003"
down_revision = "responses_0002"
branch_labels = None
depends_on = None

INDEX = "responses_of_a_conversation"


def upgrade() -> None:
    op.create_table(
        "conversations",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("used_at", sa.BigInteger, nullable=False, index=True),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Index("conversations_of_a_user", "tenant", "owner", "used_at"),
    )
    op.add_column("responses", sa.Column("conversation", sa.Text))
    op.add_column("responses", sa.Column("turn", sa.Integer, nullable=False, server_default="0"))
    op.create_index(INDEX, "responses", ["conversation", "turn"])


def downgrade() -> None:
    op.drop_index(INDEX, "responses")
    op.drop_column("responses", "turn")
    op.drop_column("responses", "conversation")
    op.drop_table("conversations")

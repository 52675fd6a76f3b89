"""Responses of /v1/responses, each with the input items of its own turn."""

import sqlalchemy as sa
from alembic import op

revision = "responses_0001"
down_revision = None
branch_labels = ("responses",)
depends_on = None


def upgrade() -> None:
    op.create_table(
        "responses",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False, index=True),
        sa.Column("previous_id", sa.Text),
        sa.Column("response", sa.Text, nullable=False),
        sa.Column("items", sa.Text, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("responses")

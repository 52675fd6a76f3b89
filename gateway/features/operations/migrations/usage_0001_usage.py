"""What keys and programs used of the models, a row for each day and pair."""

import sqlalchemy as sa
from alembic import op

revision = "usage_0001"
down_revision = None
branch_labels = ("usage",)
depends_on = None


def upgrade() -> None:
    op.create_table(
        "usage",
        sa.Column("day", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("client", sa.Text, primary_key=True),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("errors", sa.BigInteger, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("seconds", sa.Float(53), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("usage")

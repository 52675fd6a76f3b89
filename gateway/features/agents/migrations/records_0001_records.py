"""A tenant's models, their records and saved filters."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "records_0001"
down_revision = None
branch_labels = ("records",)
depends_on = None

JSON = sa.JSON().with_variant(JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "record_models",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("schema", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("updated_at", sa.Text, nullable=False),
    )
    op.create_table(
        "record_filters",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("query", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["tenant", "model"], ["record_models.tenant", "record_models.name"]),
    )
    op.create_table(
        "records",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("data", JSON, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("updated_at", sa.Text, nullable=False),
        sa.Column("trashed_at", sa.Text),
        sa.ForeignKeyConstraint(["tenant", "model"], ["record_models.tenant", "record_models.name"]),
        sa.Index("records_of_a_model", "tenant", "model", "seq"),
    )


def downgrade() -> None:
    op.drop_table("records")
    op.drop_table("record_filters")
    op.drop_table("record_models")

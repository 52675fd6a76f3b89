"""The engines and nodes of a cluster, and the key with which its gateways ask its engines."""

import sqlalchemy as sa
from alembic import op

revision = "cluster_0001"
down_revision = None
branch_labels = ("cluster",)
depends_on = None


def upgrade() -> None:
    op.create_table(
        "cluster_engines",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("launch", sa.Text, nullable=False),
        sa.Column("slots", sa.Integer, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
    )
    op.create_table(
        "cluster_nodes",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("node", sa.Text, nullable=False),
    )
    op.create_table(
        "cluster_keys",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )

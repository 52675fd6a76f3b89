"""The port at which an engine's actor places requests."""

import sqlalchemy as sa
from alembic import op

revision = "cluster_0002"
down_revision = "cluster_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("cluster_engines", sa.Column("places", sa.Integer, nullable=False, server_default="0"))

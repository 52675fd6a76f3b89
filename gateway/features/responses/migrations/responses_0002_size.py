"""The size of each response, in an index that sums a user's without reading them."""

import sqlalchemy as sa
from alembic import op

revision = "responses_0002"
down_revision = "responses_0001"
branch_labels = None
depends_on = None

INDEX = "ix_responses_owner"


def upgrade() -> None:
    op.add_column("responses", sa.Column("size", sa.BigInteger, nullable=False, server_default="0"))
    op.execute("UPDATE responses SET size = length(response) + length(items)")
    op.create_index(INDEX, "responses", ["tenant", "owner", "created_at", "size"])


def downgrade() -> None:
    op.drop_index(INDEX, "responses")
    op.drop_column("responses", "size")

"""The results of tool calls that a client has run, as JSON."""

import sqlalchemy as sa
from alembic import op

revision = "ctx_0002"
down_revision = "ctx_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("ctx_run", sa.Column("results", sa.Text))


def downgrade() -> None:
    with op.batch_alter_table("ctx_run") as table:
        table.drop_column("results")

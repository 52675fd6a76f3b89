"""Sessions of `/ctx`: their runs and events."""

import sqlalchemy as sa
from alembic import op

revision = "ctx_0001"
down_revision = None
branch_labels = ("ctx",)
depends_on = None

# SQLite counts up INTEGER keys alone.
KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "ctx_session",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("object", sa.Text, nullable=False),
        sa.Column("owner", sa.BigInteger, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("cwd", sa.Text),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("updated_at", sa.Float, nullable=False),
        sa.Column("last_event", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("object", "owner", "name", name="ctx_session_name"),
    )
    op.create_table(
        "ctx_run",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("session", KEY, sa.ForeignKey("ctx_session.id", ondelete="CASCADE"), nullable=False),
        sa.Column("client", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("keeper", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("input", sa.Text, nullable=False),
        sa.Column("answer", sa.Text),
        sa.Column("first_event", sa.BigInteger, nullable=False),
        sa.Column("last_event", sa.BigInteger),
        sa.UniqueConstraint("session", "client", name="ctx_run_client"),
    )
    op.create_index("ctx_run_active", "ctx_run", ["keeper", "state"])
    op.create_table(
        "ctx_event",
        sa.Column("session", KEY, sa.ForeignKey("ctx_session.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("run", sa.Text, nullable=False),
        sa.Column("frame", sa.Text, nullable=False),
    )


def downgrade() -> None:
    for table in ("ctx_event", "ctx_run", "ctx_session"):
        op.drop_table(table)

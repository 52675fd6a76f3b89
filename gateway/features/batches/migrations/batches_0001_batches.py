"""Files and batches of /v1/files and /v1/batches, and the lines of batches that haven't ended."""

import sqlalchemy as sa
from alembic import op

revision = "batches_0001"
down_revision = None
branch_labels = ("batches",)
depends_on = None


def upgrade() -> None:
    op.create_table(
        "files",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False, index=True),
        sa.Column("purpose", sa.Text, nullable=False),
        sa.Column("filename", sa.Text, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Index("files_of_a_user", "tenant", "owner", "created_at"),
    )
    op.create_table(
        "file_parts",
        sa.Column("file_id", sa.Text, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "batches",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("status", sa.Text, nullable=False, index=True),
        sa.Column("object", sa.Text, nullable=False),
        sa.Column("output_id", sa.Text, nullable=False),
        sa.Column("error_id", sa.Text, nullable=False),
        sa.Column("files_seconds", sa.BigInteger, nullable=False),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("completed", sa.Integer, nullable=False),
        sa.Column("failed", sa.Integer, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Index("batches_of_a_user", "tenant", "owner", "created_at"),
    )
    op.create_table(
        "batch_lines",
        sa.Column("batch_id", sa.Text, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("answer", sa.Text),
        sa.Column("failed", sa.Integer, nullable=False),
        sa.Index("batch_lines_by_model", "batch_id", "model", "number"),
    )


def downgrade() -> None:
    for table in ("batch_lines", "batches", "file_parts", "files"):
        op.drop_table(table)

"""What requests for sound and pictures count, in the rows of usage."""

import sqlalchemy as sa
from alembic import op

revision = "usage_0002"
down_revision = "usage_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("usage", sa.Column("sound_seconds", sa.Float(53), nullable=False, server_default="0"))
    op.add_column("usage", sa.Column("characters", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("usage", sa.Column("pictures", sa.BigInteger, nullable=False, server_default="0"))


def downgrade() -> None:
    for name in ("pictures", "characters", "sound_seconds"):
        op.drop_column("usage", name)

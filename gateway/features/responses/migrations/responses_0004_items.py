"""Each stored item in a row of its own, so that a page of them is read without the others.

The items that a response was given come first, by their places; those that the model wrote begin at OUTPUTS, and are
here for responses of a conversation alone: any other's are in its own row.
"""

import json

import sqlalchemy as sa
from alembic import op

revision = "responses_0004"
down_revision = "responses_0003"
branch_labels = None
depends_on = None

OUTPUTS = 1_000_000


def upgrade() -> None:
    op.create_table(
        "response_items",
        sa.Column("response", sa.Text, sa.ForeignKey("responses.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("place", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("id", sa.Text, nullable=False, index=True),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("item", sa.Text, nullable=False),
    )
    connection = op.get_bind()
    for id in [*connection.execute(sa.text("SELECT id FROM responses")).scalars()]:  # not all at once in memory
        row = connection.execute(_ROW, {"id": id}).one()
        rows = [*enumerate(json.loads(row.items))]
        if row.response and row.conversation is not None:
            rows += enumerate(json.loads(row.response)["output"], OUTPUTS)
        for place, item in rows:
            text = json.dumps(item, ensure_ascii=False, separators=(",", ":"))
            given = str(item.get("id") or "").replace("\0", "")[:256]
            connection.execute(_ADD, {"response": id, "place": place, "id": given, "size": len(text), "item": text})
    op.drop_column("responses", "items")


def downgrade() -> None:
    op.add_column("responses", sa.Column("items", sa.Text, nullable=False, server_default="[]"))
    connection = op.get_bind()
    for id, response in [*connection.execute(sa.text("SELECT id, response <> '' FROM responses"))]:
        most = OUTPUTS if response else 2**31 - 1
        items = [*connection.execute(_ITEMS, {"id": id, "most": most}).scalars()]
        connection.execute(_PUT_BACK, {"id": id, "items": f"[{','.join(items)}]"})
    op.drop_table("response_items")


_ROW = sa.text("SELECT response, items, conversation FROM responses WHERE id = :id")
_ADD = sa.text(
    "INSERT INTO response_items (response, place, id, size, item) VALUES (:response, :place, :id, :size, :item)"
)
_ITEMS = sa.text("SELECT item FROM response_items WHERE response = :id AND place < :most ORDER BY place")
_PUT_BACK = sa.text("UPDATE responses SET items = :items WHERE id = :id")

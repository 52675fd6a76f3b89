"""What the model wrote in rows of its own for every response, so that a later request may refer to it.

References that were stored in place of items go: no model was ever shown what they named.
"""

import json

import sqlalchemy as sa
from alembic import op

revision = "responses_0005"
down_revision = "responses_0004"
branch_labels = None
depends_on = None

OUTPUTS = 1_000_000


def upgrade() -> None:
    connection = op.get_bind()
    for id in [*connection.execute(_WITHOUT, {"outputs": OUTPUTS}).scalars()]:  # not all at once in memory
        response = json.loads(connection.execute(_RESPONSE, {"id": id}).scalar_one())
        size = 0
        for place, item in enumerate(response["output"], OUTPUTS):
            text = json.dumps(item, ensure_ascii=False, separators=(",", ":"))
            size += len(text)
            row = {"response": id, "place": place, "id": str(item.get("id") or ""), "size": len(text), "item": text}
            connection.execute(_ADD, row)
        connection.execute(_GROWN, {"id": id, "size": size})
    for found in connection.execute(_MENTIONING).all():
        key = {"response": found.response, "place": found.place}
        if json.loads(connection.execute(_ITEM, key).scalar_one()).get("type") == "item_reference":
            connection.execute(_REMOVE, key)


def downgrade() -> None:
    connection = op.get_bind()
    for statement in (_SHRUNK, _DELETE_OUTPUTS):
        connection.execute(statement, {"outputs": OUTPUTS})


_WITHOUT = sa.text(
    "SELECT id FROM responses r WHERE response <> '' AND conversation IS NULL "
    "AND NOT EXISTS (SELECT 1 FROM response_items i WHERE i.response = r.id AND i.place >= :outputs)"
)
_RESPONSE = sa.text("SELECT response FROM responses WHERE id = :id")
_ADD = sa.text(
    "INSERT INTO response_items (response, place, id, size, item) VALUES (:response, :place, :id, :size, :item)"
)
_GROWN = sa.text("UPDATE responses SET size = size + :size WHERE id = :id")
_MENTIONING = sa.text("SELECT response, place FROM response_items WHERE item LIKE '%\"item_reference\"%'")
_ITEM = sa.text("SELECT item FROM response_items WHERE response = :response AND place = :place")
_REMOVE = sa.text("DELETE FROM response_items WHERE response = :response AND place = :place")
_SHRUNK = sa.text(
    "UPDATE responses SET size = size - "
    "(SELECT coalesce(sum(i.size), 0) FROM response_items i WHERE i.response = responses.id AND i.place >= :outputs) "
    "WHERE conversation IS NULL"
)
_DELETE_OUTPUTS = sa.text(
    "DELETE FROM response_items WHERE place >= :outputs "
    "AND response IN (SELECT id FROM responses WHERE conversation IS NULL)"
)

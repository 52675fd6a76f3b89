"""The tables of a tenant's models and records. The migrations of branch `records` create them."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Integer, MetaData, Table, Text
from sqlalchemy.dialects.postgresql import JSONB

metadata = MetaData()

models = Table(
    "record_models",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("description", Text),
    Column("schema", Text),
    Column("created_at", Text),
    Column("updated_at", Text),
)

filters = Table(
    "record_filters",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("query", Text),
)

records = Table(
    "records",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("tenant", Text),
    Column("model", Text),
    Column("id", Text),
    Column("version", Integer),
    Column("data", JSON().with_variant(JSONB(), "postgresql")),
    Column("created_at", Text),
    Column("updated_at", Text),
    Column("trashed_at", Text),
)

"""Durable tables through SQLAlchemy: SQLite as the embedded default, PostgreSQL by URL."""

from gateway.store.claim import Claimed
from gateway.store.store import Store, StoreBusy, insist

__all__ = ["Claimed", "Store", "StoreBusy", "insist"]

"""Rooms as a store has them."""

from __future__ import annotations

from sqlalchemy import Connection

from gateway.features.rooms.schemas import Actor, Rent
from gateway.features.rooms.transaction import Transaction


def add_released(connection: Connection, count: int) -> None:
    """Adds rooms that were released, of the tenant `local`."""
    for _ in range(count):
        tx = Transaction.rent(connection, "local", "me", Rent(), [Actor()])
        tx.to("release", mode="graceful", reason=None, by="user")
        tx.to("finish")
        tx.save()

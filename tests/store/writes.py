"""What single writes of a store do, and a process that dies between two of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
from sqlalchemy import Connection, event, text

from gateway.store import Store

T = TypeVar("T")


class Killed(Exception):
    pass


def dies(store: Store, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process that is killed after so many writes."""
    write, left = store.write, [after]

    async def counted(work: Callable[[Connection], T]) -> T:
        if not left[0]:
            raise Killed
        left[0] -= 1
        return await write(work)

    monkeypatch.setattr(store, "write", counted)


@dataclass
class Writes:
    """added: by how many rows each write changed the tables' number of rows. statements: of all of them."""

    added: list[int] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)


def watched(store: Store, monkeypatch: pytest.MonkeyPatch, *tables: str) -> Writes:
    """The store's writes from now on."""
    write, seen = store.write, Writes()

    def note(*given: object) -> None:
        seen.statements.append(str(given[2]))

    async def counted(work: Callable[[Connection], T]) -> T:
        def both(connection: Connection) -> T:
            before = sum(count(connection, *tables))
            event.listen(connection, "before_cursor_execute", note)
            done = work(connection)
            event.remove(connection, "before_cursor_execute", note)
            seen.added.append(sum(count(connection, *tables)) - before)
            return done

        return await write(both)

    monkeypatch.setattr(store, "write", counted)
    return seen


def count(connection: Connection, *tables: str) -> list[int]:
    return [int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()) for table in tables]

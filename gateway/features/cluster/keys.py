"""The keys of callers in a cluster: they are in PostgreSQL, and each gateway reads a copy in its own file.

So a key works at every gateway, even while PostgreSQL is down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from sqlalchemy import Connection

from gateway.features.cluster import tables
from gateway.server.keys import Key, KeyFile
from gateway.store import Store

T = TypeVar("T")

_decode = msgspec.json.Decoder(tuple[Key, ...]).decode


class SharedKeys(KeyFile):
    """For commands. While PostgreSQL is down, methods change nothing and raise ProviderUnavailable."""

    def __init__(self, path: Path, store: str) -> None:
        super().__init__(path)
        self._store = store

    def read(self) -> tuple[Key, ...]:
        written = self._run(tables.callers)
        return super().read() if written is None else _decode(written)

    def change(self, work: Callable[[tuple[Key, ...]], tuple[Key, ...]]) -> None:
        # The first change brings the keys that this machine had before it belonged to a cluster.
        before = super().read()

        def replaced(connection: Connection) -> tuple[Key, ...]:
            written = tables.lock_callers(connection)
            keys = work(_decode(written) if written else before)
            tables.replace_callers(connection, msgspec.json.encode(keys).decode())
            return keys

        keys = self._run(replaced)
        super().change(lambda _: keys)

    def _run(self, work: Callable[[Connection], T]) -> T:
        async def run() -> T:
            store = await Store.open(self._store)
            try:
                return await store.write(work)
            finally:
                await store.aclose()

        return asyncio.run(run())


def copy(written: str, path: Path) -> None:
    """Updates the file from PostgreSQL. Blocks. Raises ProviderUnavailable."""
    keys, file = _decode(written), KeyFile(path)
    if file.read() != keys:
        file.change(lambda _: keys)

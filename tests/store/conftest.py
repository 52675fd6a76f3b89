"""Both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.postgresql import Server, start


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    with start() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'folder' / 'store.db'}"
    server: Server = request.getfixturevalue("postgresql")
    return server.database()

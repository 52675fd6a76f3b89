"""docs/clients/table.md: what the last run found, of the versions that are installed, and what a run finds again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.clients import place, table
from tests.clients.place import CELLS, Place
from tests.clients.table import CLIENTS, Client

LARGE = ("crewai",)
"""Environments of a gigabyte that one test alone would use, which only `scripts/clients table` installs."""
LIBRARIES = [client for client in CLIENTS if client.program and client.environment not in LARGE]
LOADED = 5
"""How much longer an error may take to be seen on a machine with other work."""


def test_the_page_shows_what_the_last_run_found() -> None:
    assert table.PAGE.read_text("utf-8") == table.render(table.load_kept()), "run: python -m tests.clients.table"


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_row_is_whole_and_of_the_version_that_is_installed(client: Client) -> None:
    row = table.load_kept()[client.name]
    assert row["version"] == table.pinned(client), f"run: python -m tests.clients.table {client.name!r}"
    assert list(row["cells"]) == [*CELLS]
    for cell, result in row["cells"].items():
        # A client's own limit is named.
        assert result["state"] == "yes" or (result["state"] == "cannot" and result["seen"]), (cell, result)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def where(test_model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    async with place.place(test_model, tmp_path_factory.mktemp("place"), noting=False) as found:
        yield found


@pytest.mark.clients
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("client", LIBRARIES, ids=lambda client: client.name)
async def test_a_run_finds_the_same(client: Client, where: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    if not table.is_installed(client):
        pytest.skip(f"{client.name} is not installed: scripts/clients does it, or scripts/clients table")
    for module in (place, table):
        monkeypatch.setattr(module, "SECONDS", place.SECONDS * LOADED)
    found = await table.library(client, where)
    kept = table.load_kept()[client.name]["cells"]
    assert {cell: (found[cell].state, found[cell].seen) for cell in CELLS} == {
        cell: (kept[cell]["state"], kept[cell].get("seen", "")) for cell in CELLS
    }

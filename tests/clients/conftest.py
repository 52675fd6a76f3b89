"""Clients as their registries give them, run as programs of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.surroundings import environment_of, installed
from tests.support.apis import real as real  # a fixture


@pytest.fixture(scope="session")
def clients() -> Path:
    """The folder that scripts/clients fills."""
    folder = installed()
    if not folder.is_dir():
        pytest.skip("the clients are not installed: scripts/clients does it")
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home folder of a client: none of the person's who runs the tests."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def environment(home: Path) -> dict[str, str]:
    return environment_of(home)

"""A configuration that `ctxgate add` and `remove` change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.inventory.commands import FILE


@pytest.fixture
def config(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    file = folder / "config.yaml"
    file.write_text(FILE)
    return file

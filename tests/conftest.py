"""What tests share: the model that they run, and the references that may lie beside the checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def test_model() -> Path:
    """The project's own model for tool calls; a checkout without it is broken."""
    path = ROOT / "_models/test/ctxgate-test-tools.gguf"
    assert path.is_file(), f"{path} belongs to the repository"
    return path


@pytest.fixture(scope="session")
def shared() -> Path:
    """Recordings and conformance tables, which aren't part of the repository."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"{folder.name}/ with the references doesn't lie beside this checkout")
    return folder

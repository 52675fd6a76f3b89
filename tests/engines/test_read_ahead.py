"""Weights are read ahead while their engine waits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.engines.read_ahead import read_ahead


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="this system has no posix_fadvise")
def test_the_files_that_are_there(tmp_path: Path) -> None:
    weights, other = tmp_path / "m.gguf", tmp_path / "gone.gguf"
    weights.write_bytes(b"w" * 4096)
    assert read_ahead([other, weights, tmp_path]) >= 4096
    assert read_ahead([other]) == 0
    assert weights.read_bytes() == b"w" * 4096

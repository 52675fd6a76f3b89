"""Files are written whole, or not at all."""

from __future__ import annotations

import os
import stat
from functools import partial
from pathlib import Path

import pytest

from gateway.config.folders import whole
from gateway.prompts.control_tokens import remember


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_file_is_replaced(mode: int, tmp_path: Path) -> None:
    file = tmp_path / "new" / "file"
    for content in (b"a longer one", b"one"):
        whole(file, content, mode)
        assert file.read_bytes() == content
        assert stat.S_IMODE(file.stat().st_mode) == mode
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert os.listdir(file.parent) == ["file"]


def test_what_cannot_be_written_leaves_no_draft(tmp_path: Path) -> None:
    file = tmp_path / "a folder stands here"
    file.mkdir()
    for write in (partial(whole, file, b"one"), partial(remember, file, "key", {"token": [1]})):
        with pytest.raises(IsADirectoryError):
            write()
        assert os.listdir(tmp_path) == [file.name]

"""A wheel that was installed, and an empty home for it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.cli.installation import to_build
from tests.conftest import ROOT
from tests.patience import PATIENCE


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command `ctxgate` of the installed wheel. Its dependencies are those of this environment, not its code."""
    folder = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", *to_build(), "--no-build-isolation", "--no-index", "--wheel-dir", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE)
    venv.create(folder / "venv", with_pip=True, symlinks=True)
    (wheel,) = folder.glob("*.whl")
    install: list[str | Path] = [
        folder / "venv/bin/python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        str(wheel),
    ]
    subprocess.run(install, check=True, capture_output=True, timeout=PATIENCE)
    (packages,) = (folder / "venv/lib").glob("python*/site-packages")
    theirs = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "dependencies.pth").write_text("\n".join(theirs), "utf-8")
    return folder / "venv/bin/ctxgate"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    (tmp_path / "empty").mkdir()
    return tmp_path / "home"

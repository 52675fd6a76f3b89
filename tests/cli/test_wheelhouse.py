"""The wheel, with the wheels that it needs in a folder, is installed by pip, pipx and uv where there is no network."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.commands import answering
from tests.cli.installation import answer, run, served
from tests.conftest import ROOT
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

WANTED = "ctxgate[llama,hub]"
SERVICE = ROOT / "docs/service.md"
SECONDS = 900


def done(*command: str | Path, **env: str) -> str:
    finished = subprocess.run(
        [*map(str, command)],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one part that takes the network."""
    folder = tmp_path_factory.mktemp("wheels")
    (line,) = re.findall(r"^pip wheel --wheel-dir wheelhouse ([^#\n]*)", SERVICE.read_text("utf-8"), re.MULTILINE)
    done(sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", folder / "wheelhouse", *shlex.split(line))
    return folder / "wheelhouse"


@pytest.fixture(scope="module")
def installers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with pipx and uv."""
    folder = tmp_path_factory.mktemp("installers")
    venv.create(folder, with_pip=True, symlinks=True)
    done(folder / "bin/python", "-m", "pip", "install", "--quiet", "pipx", "uv")
    return folder / "bin"


def by_pip(installers: Path, wheelhouse: Path, folder: Path, offline: dict[str, str]) -> Path:
    venv.create(folder / "venv", with_pip=True, symlinks=True)
    python = folder / "venv/bin/python"
    offer = ("--no-index", "--find-links", wheelhouse)
    done(python, "-m", "pip", "install", "--quiet", *offer, WANTED, **offline)
    return folder / "venv/bin/ctxgate"


def by_pipx(installers: Path, wheelhouse: Path, folder: Path, offline: dict[str, str]) -> Path:
    env = {"PIPX_HOME": str(folder / "pipx"), "PIPX_BIN_DIR": str(folder / "bin"), **offline}
    done(installers / "pipx", "install", f"--pip-args=--no-index --find-links {wheelhouse}", WANTED, **env)
    return folder / "bin/ctxgate"


def by_uv(installers: Path, wheelhouse: Path, folder: Path, offline: dict[str, str]) -> Path:
    places = {"UV_TOOL_DIR": "uv", "UV_TOOL_BIN_DIR": "bin", "UV_CACHE_DIR": "cache"}
    env = {name: str(folder / place) for name, place in places.items()} | offline
    offer = ("--offline", "--no-index", "--find-links", wheelhouse, "--python", sys.executable)
    done(installers / "uv", "tool", "install", "--quiet", *offer, WANTED, **env)
    return folder / "bin/ctxgate"


@pytest.mark.parametrize(
    ("install", "again"), [(by_pip, "-m pip install"), (by_pipx, "pipx install"), (by_uv, "uv tool")]
)
def test_offline_from_a_wheelhouse_to_the_first_answer(
    install: Callable[[Path, Path, Path, dict[str, str]], Path],
    again: str,
    wheelhouse: Path,
    installers: Path,
    home: Path,
    tmp_path: Path,
) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}/simple"
    offline = {"PIP_INDEX_URL": nowhere, "PIP_NO_INDEX": "1", "UV_INDEX_URL": nowhere, "HOME": str(home)}
    (tmp_path / "place").mkdir()
    command = install(installers, wheelhouse, tmp_path / "place", offline)
    checked = run(command, home, "self", "check")
    assert "wrong" not in checked.stdout
    assert checked.returncode == 0
    assert "ok     extras: hub, llama" in checked.stdout
    port = free_port()
    with served(command, home, port), answering(port):
        assert answer(port)["model"] == "ctxgate-test-tools"
    # The cure of a fault is a command of the program that installed it.
    package = next((tmp_path / "place").rglob("gateway/errors.py"))
    package.write_text(package.read_text() + "\n")
    assert again in run(command, home, "self", "check").stdout.partition("files: changed")[2]

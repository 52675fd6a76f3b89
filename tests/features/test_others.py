"""A feature of another package, installed from its wheel: a path, a command and a section of config.yaml."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from tests.cli.commands import config, ctxgate, serving
from tests.conftest import ROOT
from tests.patience import PATIENCE
from tests.ports import free_port

SOURCE = Path(__file__).with_name("greeting")
MODELS = "active_model: echo\nmodels: {echo: {runtime: echo}}\n"


def run(*command: str | Path, cwd: Path) -> None:
    done = subprocess.run(
        [sys.executable, *map(str, command)], cwd=cwd, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PYTHONPATH with the gateway and the feature."""
    if find_spec("hatchling") is None or find_spec("pip") is None:
        pytest.skip("no hatchling and pip, which build and install the wheel")
    source = shutil.copytree(SOURCE, tmp_path_factory.mktemp("source") / "greeting")
    run("-m", "hatchling", "build", "-t", "wheel", cwd=source)
    (wheel,) = (source / "dist").glob("*.whl")
    return installed(wheel, tmp_path_factory.mktemp("installed"))


def installed(wheel: Path, target: Path) -> str:
    run("-m", "pip", "install", "--no-deps", "--no-index", "--target", target, wheel, cwd=target)
    return f"{ROOT}{os.pathsep}{target}"


def lines() -> list[str]:
    return [line for file in SOURCE.rglob("*.py") for line in file.read_text("utf-8").splitlines() if line.strip()]


def test_it_is_small() -> None:
    assert len(lines()) <= 40


@pytest.fixture
def url(tmp_path: Path, path: str) -> Iterator[str]:
    port = free_port()
    config(tmp_path, f"{MODELS}server: {{port: {port}}}\ngreeting: {{words: Good day}}\n")
    with serving(tmp_path, PYTHONPATH=path) as process:
        assert process.stderr is not None
        assert f"http://127.0.0.1:{port}" in process.stderr.readline()
        yield f"http://127.0.0.1:{port}"


def test_its_path_answers(url: str) -> None:
    with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as http:
        assert http.get("/hello/Ada").json() == {"greeting": "Good day, Ada!"}
        refused = http.post("/hello/Ada")
        assert refused.status_code == 405
        assert refused.json()["error"]["type"] == "invalid_request_error"


def test_its_command_runs(tmp_path: Path, path: str) -> None:
    config(tmp_path, MODELS)
    assert ctxgate("greet", "Ada", cwd=tmp_path, PYTHONPATH=path).stdout == "Hello, Ada!\n"
    assert "Greet somebody." in ctxgate("--help", cwd=tmp_path, PYTHONPATH=path).stdout
    assert ctxgate("greet", "Ada", cwd=tmp_path).returncode == 2, "the gateway itself has no such command"


def test_its_section_is_checked(tmp_path: Path, path: str) -> None:
    file = config(tmp_path, f"{MODELS}greeting: {{words: 5, tone: dry}}\n")
    found = ctxgate("check", cwd=tmp_path, PYTHONPATH=path).stderr
    assert f"{file}:3:19: greeting.words: 5 isn't text" in found
    assert "unknown key tone in greeting" in found
    assert "known keys: words" in found
    assert '"greeting"' in ctxgate("check", "--schema", cwd=tmp_path, PYTHONPATH=path).stdout
    config(tmp_path, f"{MODELS}greeting: {{words: Hi}}\n")
    assert "unknown key greeting" in ctxgate("check", cwd=tmp_path).stderr, "the gateway itself has no such section"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("raise RuntimeError('broken')", "RuntimeError: broken"),
        ("FEATURE = 5", "is no gateway.feature.Feature"),
        ("from gateway.feature import Feature\nFEATURE = Feature(name='rooms')", "there is another feature rooms"),
    ],
)
def test_one_that_is_broken_is_left_out(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "bad.py").write_text(text, "utf-8")
    record = tmp_path / "bad-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 1.0\n", "utf-8")
    (record / "entry_points.txt").write_text("[ctxgate.features]\nbad = bad:FEATURE\n", "utf-8")
    done = ctxgate("--help", cwd=tmp_path, PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}")
    assert done.returncode == 0
    assert "the feature bad:FEATURE can't be loaded" in done.stderr
    assert told in done.stderr

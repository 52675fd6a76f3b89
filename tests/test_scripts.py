"""The scripts that take a fresh clone to a served model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.cli.commands import answering
from tests.llama_server import pinned
from tests.patience import PATIENCE
from tests.ports import free_port

ROOT = Path(__file__).parents[1]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What of a clone the installation reads."""
    for name in ("scripts/install", "scripts/serve", "pyproject.toml", "requirements"):
        place = tmp_path / name
        place.parent.mkdir(exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, place)
    return tmp_path


def install(clone: Path, what: str, programs: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`scripts/install` with no other Python on the PATH than `programs` has."""
    env = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(clone), "PIP_CONFIG_FILE": os.devnull, **environment}
    argv: list[str | Path] = [clone / "scripts/install", what]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    path.chmod(0o755)


@pytest.mark.parametrize("script", ["check", "clients", "install", "llama-server", "lock", "test"])
def test_help_is_told_and_nothing_done(script: str, tmp_path: Path) -> None:
    place = tmp_path / "scripts" / script
    place.parent.mkdir()
    shutil.copy(ROOT / "scripts" / script, place)
    for argument in ("--help", "-h"):
        done = subprocess.run(
            [f"scripts/{script}", argument], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert f"scripts/{script}" in done.stdout
        assert not done.stdout.startswith("#")
    assert [*tmp_path.iterdir()] == [place.parent]


def test_an_old_python_is_refused(clone: Path) -> None:
    for name in ("python", "python3", "python3.11", "python3.12", "python3.13", "python3.14"):
        program(clone / "bin" / name, f'exec {sys.executable} -c "import sys; sys.exit(1)"')
    done = install(clone, "serve", clone / "bin")
    assert done.returncode == 1
    assert "ctxgate needs Python 3.11 or newer" in done.stderr
    assert not (clone / ".venv").exists()


def test_offline_it_fails_and_says_why(clone: Path) -> None:
    program(clone / "bin/python3", f'exec {sys.executable} "$@"')
    index = f"http://127.0.0.1:{free_port()}/simple"
    done = install(clone, "serve", clone / "bin", PIP_INDEX_URL=index, PIP_RETRIES="0")
    assert done.returncode == 1
    assert "the installation failed" in done.stderr
    assert not list((clone / ".venv").glob("ctxgate-*"))


def installs(clone: Path, what: str) -> list[str]:
    """What `scripts/install` asks uv to install, in an environment that has a Python."""
    log = clone / "log"
    log.unlink(missing_ok=True)
    program(clone / "bin/uv", f'echo "$*" >>{log}')
    program(clone / ".venv/bin/python", "exit 0")
    done = install(clone, what, clone / "bin")
    assert done.returncode == 0, done.stderr
    return log.read_text("utf-8").splitlines() if log.exists() else []


def test_it_installs_what_is_locked_once(clone: Path) -> None:
    first = installs(clone, "test")
    assert [line.rpartition("--quiet --python .venv/bin/python ")[2] for line in first] == [
        "--require-hashes -r requirements/test.txt",
        "--no-deps --no-build-isolation --editable .",
    ]
    assert installs(clone, "test") == []
    assert installs(clone, "serve") == [], "the larger set holds the smaller"
    assert len(installs(clone, "slow")) == 2
    assert installs(clone, "test") == [], "the larger set holds the smaller"
    for changed in ("pyproject.toml", "requirements/slow.txt"):
        with (clone / changed).open("a", encoding="utf-8") as file:
            file.write("# changed\n")
        assert len(installs(clone, "slow")) == 2


@pytest.mark.parametrize("first", ["test", "slow"])
def test_another_checkout_in_the_same_environment_is_replaced(clone: Path, first: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    for name in ("scripts", "requirements"):
        shutil.copytree(clone / name, other / name)
    shutil.copy(clone / "pyproject.toml", other)
    (other / ".venv").symlink_to(clone / ".venv")
    assert len(installs(clone, first)) == 2
    assert len(installs(other, "serve")) == 2
    assert len(installs(clone, first)) == 2
    assert len(installs(clone, "serve")) == 0


def test_a_llama_server_that_was_built_is_told_at_once(clone: Path) -> None:
    script = clone / "scripts/llama-server"
    shutil.copy(ROOT / "scripts/llama-server", script)
    env = {"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(clone / "cache")}
    place = clone / "cache/ctxgate/llama-server" / pinned() / "llama-server"
    program(place, "exit 0")
    done = subprocess.run([script], env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{place}\n", "")


@pytest.mark.slow
def test_a_llama_server_that_can_t_be_fetched(clone: Path) -> None:
    """It tells beforehand what it will take, and leaves nothing that looks like a program."""
    shutil.copy(ROOT / "scripts/llama-server", clone / "scripts/llama-server")
    program(clone / "bin/c++", "exit 0")
    # What scripts/install leaves behind.
    program(clone / "scripts/install", "exit 0")
    program(clone / ".venv/bin/python", f'exec {sys.executable} "$@"')
    env = {
        "PATH": f"{clone / 'bin'}:/usr/bin:/bin",
        "XDG_CACHE_HOME": str(clone / "cache"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": f"http://127.0.0.1:{free_port()}/simple",
        "PIP_RETRIES": "0",
    }
    script = [clone / "scripts/llama-server"]
    done = subprocess.run(script, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode != 0
    first, _, rest = done.stderr.partition("\n")
    assert first.endswith("this happens once and takes 6 minutes on two cores")
    assert "cmake" in rest
    assert not [*clone.rglob("llama-server/*/llama-server")]


def test_locked_versions_carry_hashes_and_no_index() -> None:
    for lock in (ROOT / "requirements").iterdir():
        text = lock.read_text("utf-8")
        assert "://" not in text
        assert "--index" not in text
        entries = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
        assert entries
        assert [line for line in entries if "==" not in line or not line.endswith("\\")] == []


def test_locked_versions_keep_the_extras_that_others_ask_for() -> None:
    """pip before 23.3 finds no locked version for `google-auth[requests]` if the lock says `google-auth` alone."""
    lines = (ROOT / "requirements/test.txt").read_text("utf-8").splitlines()
    locked = [Requirement(line.rstrip(" \\")) for line in lines if "==" in line]
    extras = {canonicalize_name(entry.name): entry.extras for entry in locked}
    installed = {canonicalize_name(found.name): found.requires or [] for found in distributions()}
    missing = []
    for name, own in extras.items():
        for needed in map(Requirement, installed.get(name, [])):
            applies = any(not needed.marker or needed.marker.evaluate({"extra": extra}) for extra in {"", *own})
            lacking = needed.extras - extras.get(canonicalize_name(needed.name), set())
            if applies and lacking:
                missing.append(f"{name} asks for {needed.name}{sorted(lacking)}")
    assert missing == []


def test_the_tests_of_clients_are_where_they_are_looked_for() -> None:
    line = next(line for line in (ROOT / "scripts/test").read_text().splitlines() if "-m clients" in line)
    folders = [ROOT / word for word in line.split() if word.startswith("tests/")]
    assert folders
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if "pytest.mark." + "clients" in path.read_text()]
    assert [path for path in marked if not any(path.is_relative_to(folder) for folder in folders)] == []


def test_serve_serves_and_ends_when_told() -> None:
    if not list(Path(sys.prefix).glob("ctxgate-*")):
        pytest.skip("scripts/serve would install into this environment, which scripts/test didn't make")
    port = free_port()
    argv: list[str | Path] = [ROOT / "scripts/serve", "--port", str(port), "--model", "ctxgate-test-tools"]
    request = {"messages": [{"role": "user", "content": "Hello"}]}
    with subprocess.Popen(argv, env={**os.environ, "CTXGATE_VENV": sys.prefix}) as process:
        try:
            with answering(port):
                answer = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=request, timeout=PATIENCE)
            assert answer.json()["model"] == "ctxgate-test-tools"
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()
    assert process.returncode in (0, -15)

"""`ctxgate self check`: a whole installation, and one with a fault of each kind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.cli.commands import config, ctxgate
from tests.cli.installation import run
from tests.ports import free_port


@pytest.fixture
def quiet(home: Path) -> Path:
    """A configuration whose port is free."""
    return config(
        home.parent / "empty", f"active_model: e\nmodels: {{e: {{runtime: echo}}}}\nserver: {{port: {free_port()}}}\n"
    )


def packages(installed: Path) -> Path:
    (found,) = (installed.parents[1] / "lib").glob("python*/site-packages")
    return found


@contextmanager
def put(file: Path, text: str) -> Iterator[None]:
    """A file, or what it holds more, for a while."""
    before = file.read_bytes() if file.exists() else None
    made = not file.parent.exists()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text if before is None else before.decode() + text)
    try:
        yield
    finally:
        if before is None:
            file.unlink()
            if made:
                file.parent.rmdir()
        else:
            file.write_bytes(before)


@pytest.mark.slow
def test_a_wheel_in_an_empty_home_is_whole(installed: Path, home: Path, quiet: Path) -> None:
    done = run(installed, home, "self", "check", "--config", str(quiet))
    said = done.stdout.splitlines()
    assert not [line for line in said if line.startswith("wrong")], done.stdout
    assert done.returncode == 0
    for about in ("python", "ctxgate", "packages", "extras", "import", "files", "config", "state", "disk"):
        assert any(line.startswith(f"ok     {about}: ") for line in said), about
    assert any(line.startswith("ok     files: all ") for line in said)
    assert any(line.startswith("note   gateway: isn't running at ") for line in said)


FAULTS = (
    # file of the environment, what it is to hold, what is said, the cure
    (
        "normalizers/formats.py",
        "# edited\n",
        "files: changed: ",
        "-m pip install --force-reinstall 'ctxgate @ file://",
    ),
    (
        "uvloop.py",
        "import missing_library\n",
        "import: uvloop: ModuleNotFoundError: No module named 'missing_library'",
        "-m pip install --force-reinstall uvloop",
    ),
    (
        "xllamacpp.py",
        "import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n",
        "import: xllamacpp: importing xllamacpp dies of SIGILL: the wheel was built for another processor",
        "-m pip install --force-reinstall xllamacpp",
    ),
    (
        "alembic-0.1.0.dist-info/METADATA",
        "Metadata-Version: 2.1\nName: alembic\nVersion: 0.1.0\n",
        "packages: alembic 0.1.0 isn't >=1.18",
        "-m pip install --force-reinstall 'ctxgate @ file://",
    ),
    (
        "mlx_lm-0.1.0.dist-info/METADATA",
        "Metadata-Version: 2.1\nName: mlx-lm\nVersion: 0.1.0\n",
        "extra mlx: mlx-lm 0.1.0 isn't",
        "-m pip install --force-reinstall 'ctxgate[mlx] @ file://",
    ),
)


def test_each_fault_has_its_cure(installed: Path, home: Path, quiet: Path) -> None:
    folder = packages(installed)
    shipped = folder / "gateway/shipped/config.yaml"
    content = shipped.read_bytes()
    shipped.unlink()
    try:
        with ExitStack() as stack:
            for file, text, _, _ in FAULTS:
                stack.enter_context(put(folder / file, text))
            done = run(installed, home, "self", "check", "--config", str(quiet))
    finally:
        shipped.write_bytes(content)
    lines = done.stdout.splitlines()
    gone = f"files: missing: {shipped}"
    for says, cure in ((gone, "--force-reinstall 'ctxgate @ file://"), *((says, cure) for _, _, says, cure in FAULTS)):
        at = next((n for n, line in enumerate(lines) if line.startswith("wrong") and says in line), None)
        assert at is not None, f"{says} in {done.stdout}"
        assert cure in lines[at + 1]
    assert done.returncode == 69


def test_the_folder_the_port_and_the_configuration(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder should be")
    config(tmp_path, f"active_model: e\nmodels: {{e: {{runtime: echo}}}}\nstate_dir: {blocked}/state\n")
    done = ctxgate("self", cwd=tmp_path)
    assert f"wrong  state: {blocked}/state can't be written: Not a directory" in done.stdout
    config(tmp_path, "active_model: e\nmodels: {e: {runtim: echo}}\n")
    done = ctxgate("self", "check", cwd=tmp_path)
    assert "wrong  config: " in done.stdout
    assert "correct it: ctxgate check" in done.stdout
    assert done.returncode == 69


@pytest.mark.skipif(os.name != "posix", reason="links")
def test_another_installation_on_the_path(installed: Path, home: Path, quiet: Path) -> None:
    other = home / "bin/ctxgate"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    env = {"PATH": f"{other.parent}:{os.environ['PATH']}"}
    said = run(installed, home, "self", "check", "--config", str(quiet), **env).stdout
    assert f"note   command: {other} on the PATH belongs to another installation" in said
    other.unlink()
    other.symlink_to(installed)
    said = run(installed, home, "self", "check", "--config", str(quiet), **env).stdout
    assert "command:" not in said

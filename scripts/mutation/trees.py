"""Copies of the checkout: a mutant never touches the checkout itself."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from scripts.mutation.tools import ROOT
from scripts.mutation.tools import cache as cache_folder

_START = """\
import os, sys
if os.environ.get("COVERAGE_PROCESS_START"):
    sys.path.append({tools!r})
    import coverage
    coverage.process_startup()
"""


@dataclass(frozen=True)
class Tree:
    """A copy of the checkout, and the start-up code by which its processes find coverage."""

    root: Path
    start: Path

    def run(self, args: list[str], environment: Mapping[str, str], log: Path, limit: float | None) -> int | None:
        """Runs Python with these arguments in the copy; its exit status, None if it ran past `limit` seconds.

        Ends whatever the process left behind, also where a mutant keeps it from ending its own children.
        """
        env = {**os.environ, **environment, "PYTHONPATH": f"{self.root}:{self.start}", "PYTHONHASHSEED": "0"}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*_apart(), sys.executable, *args],
                cwd=self.root,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)


def copy(name: str, tools: Path) -> Tree:
    """A new copy of what git tracks or would track, with `shared/` beside it if the checkout has that."""
    folder = cache_folder() / "trees" / name
    shutil.rmtree(folder, ignore_errors=True)
    tree = Tree(folder / "tree", folder / "start")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for path in subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0"):
        if path and (ROOT / path).is_file():
            place = tree.root / path
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, place)
    if (ROOT.parent / "shared").is_dir():
        (folder / "shared").symlink_to((ROOT.parent / "shared").resolve())
    tree.start.mkdir()
    (tree.start / "sitecustomize.py").write_text(_START.format(tools=str(tools)), "utf-8")
    # So that a mutant's module alone is compiled anew: PYTHONDONTWRITEBYTECODE holds while mutants run.
    compiled = [sys.executable, "-m", "compileall", "-q", "gateway", "normalizers", "tests"]
    subprocess.run(compiled, cwd=tree.root, check=False, stdout=subprocess.DEVNULL)
    return tree


@cache
def _apart() -> tuple[str, ...]:
    """The command that gives a process its own pid namespace, where the system has one (Linux).

    A mutant of the code that ends processes then reaches none but its own, and none outlives it. The shell in between
    reaps what the tests orphan.
    """
    for user in ((), ("--user", "--map-current-user")):
        found = (
            "unshare",
            *user,
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            '"$@" & wait $!',
            "sh",
        )
        try:
            if subprocess.run([*found, "true"], check=False, capture_output=True).returncode == 0:
                return found
        except FileNotFoundError:
            break
    return ()


def _end(process: subprocess.Popen[bytes]) -> None:
    import psutil

    try:
        left = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        left = []
    for child in left:
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()

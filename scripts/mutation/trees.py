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

_START = """\
import os, sys
recording = {recording!r}
if os.path.isdir(recording):
    sys.path.append({tools!r})
    import coverage, psutil
    ids = [os.path.join(recording, str(process.pid)) for process in psutil.Process().parents()]
    os.environ["MUTANTS_CONTEXT"] = ""
    for path in filter(os.path.exists, ids):
        with open(path, encoding="utf-8") as file:
            os.environ["MUTANTS_CONTEXT"] = file.read()
        break
    os.environ["COVERAGE_PROCESS_START"] = os.path.join(recording, "rc")
    coverage.process_startup()
"""


@dataclass(frozen=True)
class Tree:
    """A copy of the checkout, and a folder beside it.

    While the folder `recording` exists, all processes measure coverage; a file there names the test of the process
    with that pid and of its children. Tests choose the environment of their processes, so that can't say it.
    """

    root: Path
    work: Path

    @property
    def recording(self) -> Path:
        return self.work / "recording"

    def run(self, args: list[str], environment: Mapping[str, str], log: Path, limit: float | None) -> int | None:
        """Runs Python with these arguments in the copy; its exit status, None if it ran past `limit` seconds.

        Ends whatever the process left behind, also where a mutant keeps it from ending its own children.
        """
        env = {**os.environ, **environment, "PYTHONPATH": str(self.root), "PYTHONHASHSEED": "0"}
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


def copy(folder: Path, tools: Path) -> Tree:
    """A copy of what git tracks or would track in a new folder, with `shared/` beside it if the checkout has that."""
    tree = Tree(folder / "tree", folder / "work")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for path in subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0"):
        if path and (ROOT / path).is_file():
            place = tree.root / path
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, place)
    if (ROOT.parent / "shared").is_dir():
        (folder / "shared").symlink_to((ROOT.parent / "shared").resolve())
    tree.work.mkdir()
    # Beside the packages: tests put that folder on the path of each process that runs our code.
    start = _START.format(tools=str(tools), recording=str(tree.recording))
    (tree.root / "sitecustomize.py").write_text(start, "utf-8")
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

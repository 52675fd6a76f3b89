"""The program that objects name in their first line: `runner.c`, compiled here, or else the same in Python."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from gateway.features.ctx.tree import RUNNER, STATE

SOURCE = Path(__file__).with_name("runner.c")
COMPILE_SECONDS = 60.0


def shebang(root: Path) -> str:
    # Only on Linux may a shebang name a script.
    return f"{root / RUNNER}" if sys.platform == "linux" else f"/usr/bin/env {root / RUNNER}"


def runner(root: Path, *, compile: bool) -> bytes:
    """The runner of a tree, which need not exist yet. compile: whether to look for a compiler."""
    return (compiled(root / STATE) if compile else None) or launcher()


def compiled(cache: Path) -> bytes | None:
    """The compiled runner; None if no compiler can make one. Keeps the last one in `cache`, if that folder exists."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    source = SOURCE.read_bytes()
    kept = cache / f"runner-{hashlib.sha256(source + compiler.encode()).hexdigest()[:16]}"
    try:
        return kept.read_bytes()
    except FileNotFoundError:
        pass
    program = _compile(compiler)
    if program is not None and cache.is_dir():
        for earlier in cache.glob("runner-*"):
            earlier.unlink(missing_ok=True)
        aside = cache / f"aside-{os.getpid()}-runner"
        aside.touch(0o600)
        aside.write_bytes(program)
        aside.replace(kept)
    return program


def _compile(compiler: str) -> bytes | None:
    with tempfile.TemporaryDirectory(prefix="ctxgate-") as folder:
        program = Path(folder) / "runner"
        # A static program starts in half the time, but not every system has what it needs.
        for linking in ("-static", "-O2"):
            command = [compiler, "-O2", "-s", linking, "-o", os.fspath(program), os.fspath(SOURCE)]
            try:
                done = subprocess.run(command, capture_output=True, timeout=COMPILE_SECONDS, check=False)  # noqa: S603 - the user's compiler
            except (OSError, subprocess.TimeoutExpired):
                return None
            if done.returncode == 0 and _starts(program):
                return program.read_bytes()
    return None


def _starts(program: Path) -> bool:
    try:
        done = subprocess.run([program], capture_output=True, timeout=COMPILE_SECONDS, check=False)  # noqa: S603 - ours
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 2 and b"usage:" in done.stderr


def launcher() -> bytes:
    """A few lines for this Python, without `site`, so that it starts fast."""
    package = str(Path(__file__).parents[3])
    python = sys.executable
    head = f"#!{python} -IS\n"
    if len(os.fsencode(python)) > 120 or any(char.isspace() for char in python):
        # A shebang can't name it, but sh can. sh stops at exec; for Python that line is a string.
        quoted = "'" + python.replace("'", "'\"'\"'") + "'"
        head = f"#!/bin/sh\n'''exec' {quoted} -IS \"$0\" \"$@\"\n' '''\n"
    return (
        f"{head}import sys\nsys.path.append({package!r})\n"
        "from gateway.features.ctx.runner import main\nmain(__file__, sys.argv[1:])\n"
    ).encode()

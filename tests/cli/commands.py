"""`ctxgate` as a process of its own, in which every warning is an error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.patience import PATIENCE


def environment(home: Path, **extra: str) -> dict[str, str]:
    """An environment without the user's configuration, proxies and keys."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "LD_LIBRARY_PATH", "TMPDIR")}
    root = str(Path(__file__).parents[2])
    return {**kept, "HOME": str(home), "PYTHONPATH": root, "PYTHONWARNINGS": "error", "PYTHONUTF8": "1", **extra}


def ctxgate(*args: str | Path, cwd: Path, stdin: str = "", **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway", *map(str, args)],
        cwd=cwd,
        env=environment(cwd, **extra),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@contextmanager
def serving(cwd: Path, *args: str | Path, **extra: str) -> Iterator[subprocess.Popen[str]]:
    """Runs `ctxgate serve`, which prints its address to stderr, and ends it with SIGTERM."""
    command: Sequence[str] = [sys.executable, "-m", "gateway", "serve", *map(str, args)]
    with subprocess.Popen(
        command, cwd=cwd, env=environment(cwd, **extra), stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()


def config(folder: Path, text: str) -> Path:
    file = folder / "_models" / "config.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file

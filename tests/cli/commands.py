"""`ctxgate` as a process of its own, in which every warning is an error."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.patience import PATIENCE

ECHO = "active_model: echo\nmodels: {echo: {runtime: echo}}\n"


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


@contextmanager
def answering(port: int = 0, uds: Path | None = None) -> Iterator[httpx.Client]:
    """A client of a gateway that is starting. Fails unless it answers within PATIENCE."""
    family, address = (socket.AF_UNIX, str(uds)) if uds else (socket.AF_INET, ("127.0.0.1", port))
    end = time.monotonic() + PATIENCE
    while True:
        with socket.socket(family) as connection:
            if connection.connect_ex(address) == 0:
                break
        assert time.monotonic() < end
        time.sleep(0.05)
    transport = httpx.HTTPTransport(uds=str(uds) if uds else None)
    with httpx.Client(
        base_url=f"http://127.0.0.1:{port}", transport=transport, trust_env=False, timeout=PATIENCE
    ) as client:
        assert client.get("/health").status_code == 200
        yield client

"""A wheel that was installed: how it is built, and its `ctxgate` in an empty home and an empty folder."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.cli.commands import environment
from tests.conftest import ROOT
from tests.patience import PATIENCE
from tests.ports import free_port

HELLO = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}


def to_build() -> list[str]:
    """The command of README.md that builds the wheel."""
    (line,) = re.findall(r"^pip wheel [^#\n]*", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    return shlex.split(line)


def surroundings(home: Path, **extra: str) -> dict[str, str]:
    """Without the checkout on Python's path, and without a package index."""
    env = environment(home, PIP_INDEX_URL=f"http://127.0.0.1:{free_port()}/simple", **extra)
    del env["PYTHONPATH"]
    return env


def run(command: Path, home: Path, *args: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [command, *args],
        cwd=home.parent / "empty",
        env=surroundings(home, **extra),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@contextmanager
def served(command: Path, home: Path, port: int, **extra: str) -> Iterator[list[str]]:
    """Runs `ctxgate serve`. Yields what it says, which is complete at the end."""
    said: list[str] = []
    with subprocess.Popen(
        [command, "serve", "--port", str(port)],
        cwd=home.parent / "empty",
        env=surroundings(home, **extra),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield said
        finally:
            process.terminate()
            try:
                said += process.communicate(timeout=PATIENCE)[1].splitlines()
            finally:
                process.kill()


def answer(port: int) -> dict[str, str]:
    response = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=HELLO, timeout=PATIENCE)
    assert response.status_code == 200, response.text
    found = response.json()
    return {"model": found["model"], "text": found["choices"][0]["message"]["content"]}

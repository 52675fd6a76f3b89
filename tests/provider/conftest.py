"""The project's own test model, and the gateway as a process of its own."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tests.ports import free_port

ROOT = Path(__file__).parents[2]


@pytest.fixture
def many_files() -> Iterator[None]:
    """As many open files as the system allows. mlx_lm lowers the limit of the process that imports it to 2048."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="session")
def test_model() -> Path:
    """The project's own test model; while there is none, the prototype beside the checkout."""
    own = ROOT / "_models/test/ctxgate-test-tools.gguf"
    prototype = ROOT.parent / "shared/tiny-model/tiny-tools.Q8_0.gguf"
    for path in (own, prototype):
        if path.exists():
            return path
    pytest.skip("no test model: neither the project's own nor the prototype beside the checkout")


@contextmanager
def running_gateway(config: Path, **environment: str) -> Iterator[str]:
    """`python -m gateway serve`; yields its URL once it listens."""
    port = free_port()
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(config), "--port", str(port)]
    with (config.parent / "gateway.log").open("w+b") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, stdout=log, stderr=log)
        try:
            wait_for(port, process, log.name)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(PATIENCE)


def wait_for(port: int, process: subprocess.Popen[bytes], log: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            pass
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        break
    raise AssertionError(f"the gateway did not start: {Path(log).read_text()}")

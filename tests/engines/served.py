"""The gateway as a user runs it: a process of its own, from a config.yaml."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml

from tests.conftest import ROOT
from tests.gateway.running import NO_COMMENTS
from tests.patience import PATIENCE
from tests.ports import free_port


@dataclass(frozen=True)
class Served:
    url: str
    process: subprocess.Popen[bytes]


@contextmanager
def served(config: Mapping[str, object], folder: Path, **environment: str) -> Iterator[Served]:
    """A gateway with that configuration, and with `environment` on top of this process's.

    Its streams have no comments before the answer unless the configuration has a `server`.
    """
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump({"server": dict(NO_COMMENTS), **config}))
    port = free_port()
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(file), "--port", str(port)]
    log = (folder / "gateway.log").open("wb")
    with (
        log,
        subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, stdout=log, stderr=log
        ) as process,
    ):
        try:
            _wait(f"http://127.0.0.1:{port}", process, folder / "gateway.log")
            yield Served(f"http://127.0.0.1:{port}", process)
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


@contextmanager
def bare(*argv: str | Path) -> Iterator[str]:
    """The base URL of an engine's server, started by hand. argv: without its port."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(
        [*argv, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            deadline = time.monotonic() + PATIENCE
            while True:
                try:
                    urllib.request.urlopen(f"{url}/health", timeout=PATIENCE).close()
                    break
                except OSError:  # urllib's own among them
                    assert process.poll() is None, "the server ended"
                    assert time.monotonic() < deadline, "the server did not come up"
                    time.sleep(0.05)
            yield url
        finally:
            process.kill()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            httpx.get(f"{url}/health", timeout=PATIENCE).raise_for_status()
        except httpx.TransportError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, "the gateway did not come up"
            time.sleep(0.02)
        else:
            return

"""A real Ollama: the one that OLLAMA_HOST names, or one from the PATH, which serves the models that it has."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from gateway.features.models.inventory.servers import ollama_url
from tests.patience import PATIENCE
from tests.ports import free_port


@dataclass(frozen=True)
class Real:
    """model: the smallest that writes text. capabilities: its own."""

    url: str
    version: str
    model: str
    capabilities: tuple[str, ...]


@pytest.fixture(scope="session")
def ollama() -> Iterator[Real]:
    if os.environ.get("OLLAMA_HOST"):
        yield described(ollama_url())
        return
    if (command := shutil.which("ollama")) is None:
        pytest.skip("no Ollama: set OLLAMA_HOST, or put `ollama` on the PATH")
    url = f"http://127.0.0.1:{free_port()}"
    with subprocess.Popen([command, "serve"], env={**os.environ, "OLLAMA_HOST": url}) as process:
        try:
            until_ready(url)
            yield described(url)
        finally:
            process.terminate()


def until_ready(url: str) -> None:
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        try:
            httpx.get(f"{url}/api/version", timeout=1).raise_for_status()
        except httpx.HTTPError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"`ollama serve` says nothing at {url}")


def described(url: str) -> Real:
    with httpx.Client(base_url=url, timeout=PATIENCE) as http:
        version = http.get("/api/version").raise_for_status().json()["version"]
        for listed in sorted(http.get("/api/tags").raise_for_status().json()["models"], key=lambda one: one["size"]):
            able = http.post("/api/show", json={"model": listed["name"]}).json().get("capabilities") or ()
            if "completion" in able:
                return Real(url, version, listed["name"], tuple(able))
    pytest.skip(f"Ollama at {url} has no model that writes text: `ollama pull` a small one")

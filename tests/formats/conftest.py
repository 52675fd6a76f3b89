"""Real llama.cpp with the test model, one server for all tests of a build."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from gateway.config import Config, Model
from tests.conftest import ROOT
from tests.ports import free_port

WINDOW = 1024
BUILDS = ("xllamacpp", "on_path")
EMBEDDED = [sys.executable, "-P", str(ROOT / "gateway/engines/xllamacpp_server.py")]

Serve = Callable[..., str]
"""build, model, *options -> base URL"""


@pytest.fixture(scope="session")
def serve(request: pytest.FixtureRequest) -> Iterator[Serve]:
    """Starts servers, each once."""
    with ExitStack() as stack:
        running: dict[tuple[object, ...], str] = {}

        def start(build: str, model: Path, *options: str) -> str:
            if build == "xllamacpp" and find_spec("xllamacpp") is None:
                pytest.skip("xllamacpp is not installed")
            key = (build, model, *options)
            if key not in running:
                command = (
                    EMBEDDED if build == "xllamacpp" else [str(request.getfixturevalue("llama_server")), "--jinja"]
                )
                running[key] = stack.enter_context(_server(command, model, options))
            return running[key]

        yield start


@pytest.fixture(params=BUILDS)
def llama_cpp(request: pytest.FixtureRequest, serve: Serve, test_model: Path) -> str:
    """The base URL of llama.cpp with the test model."""
    return serve(request.param, test_model)


@contextmanager
def _server(command: list[str], model: Path, options: tuple[str, ...]) -> Iterator[str]:
    port = free_port()
    common = ["--model", str(model), "--alias", "m", "--host", "127.0.0.1", "--port", str(port), "--threads", "1"]
    command = [*command, *common, "--ctx-size", str(WINDOW), "--parallel", "1", *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait(f"http://127.0.0.1:{port}", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 40
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5) as response:
                assert json.load(response)["status"] == "ok"
                return
        except OSError:  # urllib's own among them
            assert process.poll() is None, "the server ended"
            assert time.monotonic() < deadline, "the server did not come up"
            time.sleep(0.05)


def config(*models: Model) -> Config:
    return Config(source=Path("config.yaml"), active_model=models[0].name, models={m.name: m for m in models})


def external(url: str, tool_call_format: str, name: str = "m") -> Model:
    return Model(name=name, runtime="llama.cpp", base_url=url, tool_call_format=tool_call_format)

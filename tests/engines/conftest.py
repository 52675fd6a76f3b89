"""Real engines and the real test model for them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.config import Model
from gateway.engines.machine import this_machine
from gateway.engines.recipe import Machine
from tests.conftest import ROOT
from tests.engines.served import bare
from tests.patience import PATIENCE

WINDOW = 512


@pytest.fixture(scope="session")
def mlx_python() -> str:
    """A Python that has mlx-lm, by CTXGATE_TEST_MLX_PYTHON or this one."""
    if named := os.environ.get("CTXGATE_TEST_MLX_PYTHON"):
        return named
    if find_spec("mlx_lm") is None:
        pytest.skip("no mlx-lm: not installed here, and CTXGATE_TEST_MLX_PYTHON names no Python that has it")
    return sys.executable


@pytest.fixture(scope="session")
def mlx_model(mlx_python: str, test_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test model as an MLX folder, made on the fly."""
    folder = tmp_path_factory.mktemp("mlx") / "tiny"
    export = ROOT / "scripts/tiny_model/export_mlx.py"
    made = subprocess.run(
        [mlx_python, str(export), str(test_model), str(folder)], capture_output=True, text=True, timeout=120
    )
    if "No module named 'gguf'" in made.stderr:
        pytest.skip("the Python that has mlx-lm has no gguf, which makes the MLX folder from the GGUF")
    assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture(scope="session")
def llama_cpp_python() -> str:
    """A Python that has llama-cpp-python and its server, by CTXGATE_TEST_LLAMA_CPP_PYTHON or this one."""
    if named := os.environ.get("CTXGATE_TEST_LLAMA_CPP_PYTHON"):
        return named
    if find_spec("llama_cpp") is None:
        pytest.skip("no llama-cpp-python: not installed here, and CTXGATE_TEST_LLAMA_CPP_PYTHON names none that has it")
    return sys.executable


@pytest.fixture
def model(test_model: Path) -> Model:
    return Model(name="tiny", runtime="llama.cpp", path=test_model, context_window=WINDOW)


@pytest.fixture
def xllamacpp() -> Callable[[], Machine]:
    """This machine without a llama-server on its PATH, so that recipes take the wheel."""
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed")
    return lambda: replace(this_machine(), which=lambda name: None)


@pytest.fixture
def on_path(llama_server: Path) -> Callable[[], Machine]:
    """This machine with a llama-server on its PATH; the id of the test says which one."""
    return lambda: replace(this_machine(), which=lambda name: str(llama_server))


def gone(pid: int, timeout: float = 30.0) -> bool:
    """Whether the process ends within `timeout` seconds; waits for the event where the system has one."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout)[0])
    finally:
        os.close(descriptor)


def alive(pid: int) -> bool:
    return not gone(pid, timeout=0)


def stand_still(pid: int, timeout: float = 20.0) -> None:
    """Stops a process; returns once each of its threads stands still, which `kill` doesn't wait for."""
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + timeout
    while any(state != "T" for state in thread_states(pid)):
        assert time.monotonic() < end, f"process {pid} goes on"
        time.sleep(0.001)


def thread_states(pid: int) -> Iterator[str]:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            yield (thread / "stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture(scope="module")
def mlx(mlx_python: str, mlx_model: Path) -> Iterator[str]:
    """The base URL of our server of MLX, which takes grammars."""
    found = subprocess.run([mlx_python, "-c", "import llguidance"], capture_output=True, timeout=PATIENCE)
    if found.returncode:
        pytest.skip("the Python that has mlx-lm has no llguidance")
    script = str(ROOT / "gateway/engines/mlx_server.py")
    options = ("--context-window", "1024", "--decode-concurrency", "4", "--log-level", "WARNING")
    with bare(mlx_python, "-P", script, "--model", str(mlx_model), *options) as url:
        yield url

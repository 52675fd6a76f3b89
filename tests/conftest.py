"""What tests share: the model that they run, and the references that may lie beside the checkout."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.llama_server import CURE, Found, find, launcher
from tests.support.thorough import examples, left_out

ROOT = Path(__file__).parents[1]

# How long an example takes is the machine's affair. The same examples each time: whoever breaks one has changed the
# code. CTXGATE_TEST_RANDOM=1 draws others, and more of them.
settings.register_profile(
    "untimed",
    deadline=None,
    derandomize="CTXGATE_TEST_RANDOM" not in os.environ,
    max_examples=200 if "CTXGATE_TEST_RANDOM" in os.environ else examples(75),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("untimed")


def pytest_configure() -> None:
    # A shell without job control starts background jobs (`scripts/test &`) with SIGINT ignored, and a process that
    # inherits that can't be interrupted: tests of Ctrl-C would wait in vain.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # see pytest_collection_finish
    # Several engines share the processors with the tests: threads that spin would wait for those that don't run.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    out = left_out(items)
    config.hook.pytest_deselected(items=out)
    gone = {*out}
    items[:] = [item for item in items if item not in gone]


def pytest_collection_finish() -> None:
    # Millions of objects that stay until the end, which each garbage collection would visit.
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No test writes into the state folder of the person who runs it; child processes find this one, too."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session")
def test_model() -> Path:
    """The project's own model for tool calls; a checkout without it is broken."""
    path = ROOT / "_models/test/ctxgate-test-tools.gguf"
    assert path.is_file(), f"{path} belongs to the repository"
    return path


FOUND = pytest.StashKey[Found]()


def found_llama_server(config: pytest.Config) -> Found:
    """Looked for once a run: the workers of pytest-xdist are told what their controller found."""
    if FOUND not in config.stash:
        told = getattr(config, "workerinput", {}).get("llama_server")
        config.stash[FOUND] = Found(*told) if told is not None else find()
    return config.stash[FOUND]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["llama_server"] = astuple(found_llama_server(node.config))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "llama_server" in metafunc.fixturenames:
        metafunc.parametrize("llama_server", ["on_path"], indirect=True, scope="session")


def pytest_make_parametrize_id(config: pytest.Config, val: object) -> str | None:
    """Rows of llama-server say which one it is."""
    return f"on_path={found_llama_server(config).name}" if val == "on_path" else None


@pytest.fixture(scope="session")
def llama_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program `llama-server`, alone in its folder: a real one, else the embedded engine, as the id says."""
    found = found_llama_server(request.config)
    if not found.argv:
        pytest.skip(f"no llama-server runs here, and xllamacpp, which would stand in, is not installed; {CURE}")
    return launcher(found, tmp_path_factory.mktemp("llama-server"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """Recordings and conformance tables, which aren't part of the repository."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"{folder.name}/ with the references doesn't lie beside this checkout")
    return folder

"""What tests share: the model that they run, and the references that may lie beside the checkout."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[1]

# How long an example takes is the machine's affair.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_configure() -> None:
    # A shell without job control starts background jobs (`scripts/test &`) with SIGINT ignored, and a process that
    # inherits that can't be interrupted: tests of Ctrl-C would wait in vain.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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


@pytest.fixture(scope="session")
def shared() -> Path:
    """Recordings and conformance tables, which aren't part of the repository."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"{folder.name}/ with the references doesn't lie beside this checkout")
    return folder

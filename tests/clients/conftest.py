"""Clients as their registries give them, run as programs of their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.api.conftest import real as real  # a fixture


@pytest.fixture(scope="session")
def clients() -> Path:
    """The folder that scripts/clients fills."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("CTXGATE_CLIENTS") or Path(cache) / "ctxgate/clients")
    if not folder.is_dir():
        pytest.skip("the clients are not installed: scripts/clients does it")
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home folder of a client: none of the person's who runs the tests."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def environment(home: Path) -> dict[str, str]:
    """Of a client: nothing of this process's but the PATH. No telemetry, no updates, nothing but loopback."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_DATA_HOME": str(home / "data"),
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_STATE_HOME": str(home / "state"),
        "LLM_USER_PATH": str(home / "llm"),
        "TERM": "dumb",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "DO_NOT_TRACK": "1",
        "DISABLE_TELEMETRY": "1",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "ANONYMIZED_TELEMETRY": "False",
    }

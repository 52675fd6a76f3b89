"""`ctxgate load` and `unload`, before a gateway with the real model."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from tests.cli.commands import ctxgate
from tests.engines.served import served
from tests.patience import PATIENCE
from tests.ports import free_port


def test_load_and_unload(tmp_path: Path, test_model: Path) -> None:
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed")
    tiny = {"runtime": "llama.cpp", "path": str(test_model), "context_window": 512, "threads": 1}
    config = {"active_model": "tiny", "models": {"tiny": tiny, "echo": {"runtime": "echo"}}}
    with served({**config, "state_dir": str(tmp_path / "state")}, tmp_path) as gateway:
        where = ("--config", tmp_path / "config.yaml", "--url", gateway.url)
        loaded = ctxgate("load", *where, cwd=tmp_path)
        assert loaded.returncode == 0, loaded.stderr
        assert loaded.stdout.startswith("tiny is loaded: it took ")
        assert httpx.get(f"{gateway.url}/ready/tiny", timeout=PATIENCE).json()["state"] == "ready"
        unloaded = ctxgate("unload", "tiny", *where, cwd=tmp_path)
        assert (unloaded.returncode, unloaded.stdout) == (0, "tiny is unloaded\n")
        assert httpx.get(f"{gateway.url}/ready/tiny", timeout=PATIENCE).json()["state"] == "stopped"
        theirs = ctxgate("unload", "echo", *where, cwd=tmp_path)
        assert (theirs.returncode, "decides itself" in theirs.stderr) == (2, True)
    nobody = ctxgate("load", *where[:2], "--url", f"http://127.0.0.1:{free_port()}", cwd=tmp_path)
    assert (nobody.returncode, "no gateway answers" in nobody.stderr) == (69, True)

"""The hub's own client against a loopback hub, through the command, since the client reads its settings at import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tests.pull.sources import WEIGHTS, Source, serving, sha256

pytest.importorskip("huggingface_hub", reason="the extra `hub` isn't installed")

COMMIT = "c" * 40
REPO = "someone/Tiny-GGUF"


def hub(content: bytes = WEIGHTS, *, promised: str | None = None) -> Source:
    lfs = {"oid": promised or sha256(content), "size": len(content), "pointerSize": 130}
    weights = {"type": "file", "path": "tiny.gguf", "size": len(content), "oid": "0" * 40, "lfs": lfs}
    settings = {"type": "file", "path": "config.json", "size": 2, "oid": "1" * 40}
    siblings = [{"rfilename": entry["path"]} for entry in (weights, settings)]
    api = f"/api/models/{REPO}"
    said = {
        f"{api}/revision/main": {"id": REPO, "modelId": REPO, "sha": COMMIT, "siblings": siblings},
        f"{api}/paths-info/main": [weights],
        f"{api}/tree/{COMMIT}": [weights, settings],
    }
    files = {
        f"/{REPO}/resolve/{revision}/{name}": body
        for revision in ("main", COMMIT)
        for name, body in {"tiny.gguf": content, "config.json": b"{}"}.items()
    }
    pages = {path: ("application/json", json.dumps(body).encode()) for path, body in said.items()}
    return Source(files=files, pages=pages, headers={"x-repo-commit": COMMIT})


def run(source: Source, folder: Path, pull: str, *, path: str = "tiny.gguf") -> subprocess.CompletedProcess[str]:
    config = folder / "config.yaml"
    config.write_text(f"active_model: m\nmodels: {{m: {{runtime: llama.cpp, path: {path}, pull: {pull}}}}}\n")
    environ = {
        **os.environ,
        "HF_ENDPOINT": source.url,
        "HF_HOME": str(folder / "home"),
        "HF_HUB_DOWNLOAD_TIMEOUT": "5",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1",
    }
    environ.pop("HF_HUB_OFFLINE", None)
    command = [sys.executable, "-m", "gateway", "pull", "--config", str(config)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name not in ("config.yaml", "home"))


def test_a_file(tmp_path: Path) -> None:
    with serving(hub()) as source:
        done = run(source, tmp_path, f"{{hub: {REPO}, file: tiny.gguf}}")
    assert (done.returncode, done.stdout.strip()) == (0, str(tmp_path / "tiny.gguf")), done.stderr
    assert (tmp_path / "tiny.gguf").read_bytes() == WEIGHTS
    assert left(tmp_path) == ["tiny.gguf"]


@pytest.mark.parametrize("who", ["hub", "config"])
def test_another_hash_is_refused(who: str, tmp_path: Path) -> None:
    extra = f", sha256: {'a' * 64}" if who == "config" else ""
    with serving(hub(promised="b" * 64 if who == "hub" else None)) as source:
        done = run(source, tmp_path, f"{{hub: {REPO}, file: tiny.gguf{extra}}}")
    assert done.returncode == 1
    assert "isn't what was promised" in done.stderr
    assert left(tmp_path) == []


def test_a_folder(tmp_path: Path) -> None:
    with serving(hub()) as source:
        done = run(source, tmp_path, f"{{hub: {REPO}}}", path="tiny-folder")
    assert done.returncode == 0, done.stderr
    assert left(tmp_path) == ["tiny-folder"]
    assert sorted(path.name for path in (tmp_path / "tiny-folder").iterdir()) == ["config.json", "tiny.gguf"]
    assert (tmp_path / "tiny-folder" / "tiny.gguf").read_bytes() == WEIGHTS


def test_no_such_file(tmp_path: Path) -> None:
    with serving(hub()) as source:
        done = run(source, tmp_path, f"{{hub: {REPO}, file: other.gguf}}")
    assert (done.returncode, done.stderr.strip()) == (1, f"ctxgate: {REPO} has no other.gguf")


def test_offline(tmp_path: Path) -> None:
    with serving(Source()) as gone:
        pass
    done = run(gone, tmp_path, f"{{hub: {REPO}, file: tiny.gguf, sha256: {'a' * 64}}}")
    assert done.returncode == 69, done.stderr
    assert "the hub can't be reached" in done.stderr
    assert "Traceback" not in done.stderr

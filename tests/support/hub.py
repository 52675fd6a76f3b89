"""A loopback hub with one repository; whoever imports this needs the hub's own client."""

from __future__ import annotations

import json
from hashlib import sha1

import pytest

from tests.models.pull.sources import WEIGHTS, Source, sha256

# The client is an extra: without it, the modules that use this hub are skipped.
pytest.importorskip("huggingface_hub", reason="the extra `hub` isn't installed")

COMMIT = "c" * 40
REPO = "someone/Tiny-GGUF"


def hub(
    content: bytes = WEIGHTS,
    *,
    promised: str | None = None,
    names: tuple[str, ...] = ("tiny.gguf",),
    gguf: dict[str, object] | None = None,
) -> Source:
    """A repository with those GGUF files, all of one content. gguf: what the hub read in their heads."""
    lfs = {"oid": promised or sha256(content), "size": len(content), "pointerSize": 130}
    weights = [{"type": "file", "path": name, "size": len(content), "oid": "0" * 40, "lfs": lfs} for name in names]
    settings = {"type": "file", "path": "config.json", "size": 2, "oid": sha1(b"blob 2\0{}").hexdigest()}
    entries = [*weights, settings]
    info = {"id": REPO, "modelId": REPO, "sha": COMMIT, "siblings": [{"rfilename": each["path"]} for each in entries]}
    api = f"/api/models/{REPO}"
    said = {
        f"{api}/revision/main": info,
        f"{api}/revision/{COMMIT}": {**info, "gguf": gguf or {}},
        f"{api}/paths-info/{COMMIT}": entries,
        f"{api}/tree/{COMMIT}": entries,
        "/api/models": [{"id": REPO, "downloads": 12_345, "likes": 6, "lastModified": "2026-01-02T03:04:05.000Z"}],
    }
    files = {f"/{REPO}/resolve/{COMMIT}/{name}": content for name in names}
    files[f"/{REPO}/resolve/{COMMIT}/config.json"] = b"{}"
    pages = {path: ("application/json", json.dumps(body).encode()) for path, body in said.items()}
    return Source(files=files, pages=pages, headers={"x-repo-commit": COMMIT})

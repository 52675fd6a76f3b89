"""A gateway without `cluster:` loads nothing of it, whatever it is asked."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.cli.commands import config, environment
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.store.postgresql import start
from tests.support.batches import chats

CLUSTERS = re.compile(
    r"\|\s+(gateway\.features\.cluster\.(?!feature$)\S+|(?:ray|psycopg|fsspec)(?:\.\S+)?)$", re.MULTILINE
)
"""All but the description of the feature."""


def imported(folder: Path, more: str) -> set[str]:
    """What a gateway imported that was asked by each of its APIs."""
    port = free_port()
    config(folder, f"active_model: echo\nmodels: {{echo: {{runtime: echo}}}}\nserver: {{port: {port}}}\n{more}")
    command = [sys.executable, "-X", "importtime", "-m", "gateway", "serve"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment(folder), stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE, trust_env=False) as http:
            while True:
                try:
                    http.get("/health")
                    break
                except httpx.TransportError:
                    assert process.poll() is None, (folder / "log").read_text()
            hi = {"messages": [{"role": "user", "content": "Hi"}]}
            assert http.post("/v1/chat/completions", json=hi).status_code == 200
            assert http.post("/v1/responses", json={"model": "echo", "input": "Hi"}).status_code == 200
            sent = {"file": ("in.jsonl", b"\n".join(chats("Hi")))}
            file = http.post("/v1/files", files=sent, data={"purpose": "batch"}).json()["id"]
            wanted = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
            assert http.post("/v1/batches", json=wanted).status_code == 200
            assert http.post("/llm/room", json={}).status_code == 201
            assert (http.get("/-/status").json()["cluster"] is None) == (not more)
            assert http.get("/v1/models").status_code == 200
    finally:
        process.terminate()
        process.wait(PATIENCE)
    return set(CLUSTERS.findall((folder / "log").read_text()))


def test_nothing_of_it_is_imported(tmp_path: Path) -> None:
    assert imported(tmp_path, "") == set()


def test_a_cluster_is_noticed(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    with start() as server:
        ray = f"127.0.0.1:{free_port()}"
        found = imported(tmp_path, f'store: {server.database()}\ncluster: {{ray: "{ray}"}}\n')
    # Not `member`: what an import string names is imported in a way that -X importtime does not see.
    assert {"gateway.features.cluster.bus", "psycopg"} <= found
    assert not any(name.split(".")[0] == "ray" for name in found), "Ray's driver has a process of its own"

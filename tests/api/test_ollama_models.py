"""Ollama's `/api/pull` and `/api/delete`: the unpatched client, a hub's double, and who may not ask."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import ollama
import pytest

from gateway.app import build
from gateway.config import Config, Model, load
from gateway.features.models.pull.download import ATTEMPTS
from gateway.server.keys import FILE, KeyFile
from tests.engines.served import served
from tests.gateway.running import FAST
from tests.models.pull.sources import Source, serving
from tests.patience import PATIENCE
from tests.provider.server import serve
from tests.support.hub import REPO, hub

HF = f"hf.co/{REPO}:latest"


@pytest.fixture
def source(test_model: Path) -> Iterator[Source]:
    with serving(hub(test_model.read_bytes(), gguf={"architecture": "llama"})) as source:
        yield source


@pytest.fixture
def url(source: Source, tmp_path: Path, test_model: Path) -> Iterator[str]:
    pytest.importorskip("huggingface_hub", reason="the extra `hub` isn't installed")
    (tmp_path / "mine.gguf").write_bytes(test_model.read_bytes())
    config = {
        "active_model": "echo",
        "models": {"echo": {"runtime": "echo"}, "mine": {"runtime": "llama.cpp", "path": "mine.gguf"}},
        "state_dir": str(tmp_path / "state"),
        "server": {"cors_origins": ["*"]},
    }
    hub = {"HF_ENDPOINT": source.url, "HF_HOME": str(tmp_path / "hf"), "NO_PROXY": "127.0.0.1"}
    with served(config, tmp_path, **hub) as gateway:
        yield gateway.url


@pytest.fixture
def config(url: str, tmp_path: Path) -> Path:
    """The running gateway's file."""
    return tmp_path / "config.yaml"


def test_pull_and_delete(url: str, config: Path, test_model: Path) -> None:
    with ollama.Client(host=url, timeout=PATIENCE) as client:
        steps = [*client.pull(f"hf.co/{REPO}", stream=True)]
        assert [steps[0].status, steps[-1].status] == ["pulling manifest", "success"]
        last = [step for step in steps if step.completed][-1]
        assert last.completed == last.total == test_model.stat().st_size
        assert last.digest
        assert [model.model for model in client.list().models] == ["echo", "mine", "tiny"]
        assert (config.parent / "tiny.gguf").read_bytes() == test_model.read_bytes()
        # Its weights are gone, its entry isn't: they come again.
        (config.parent / "tiny.gguf").unlink()
        assert client.pull("tiny").status == "success"
        assert (config.parent / "tiny.gguf").exists()
        client.delete("tiny")
        client.delete("mine")
        assert [model.model for model in client.list().models] == ["echo"]
    assert not (config.parent / "tiny.gguf").exists()
    # Nothing could fetch this one again.
    assert (config.parent / "mine.gguf").exists()
    assert "mine" not in load(config, {}).models


def test_what_no_pull_brings_stays(url: str, source: Source, config: Path) -> None:
    """A folder of the user's has the name of a repository; a projector lies beside weights that were pulled."""
    mine = config.parent / REPO.partition("/")[2]
    mine.mkdir()
    (mine / "thesis.txt").write_text("ten years of work")
    tree = json.dumps(
        [{"type": "file", "path": name, "size": 2, "oid": "1" * 40} for name in ("model.bin", "config.json")]
    )
    page, seen = f"/api/models/{REPO}/tree/{'c' * 40}", config.read_text()
    kept, source.pages[page] = source.pages[page], ("application/json", tree.encode())
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:
        refused = client.post("/api/pull", json={"model": HF.removesuffix(":latest"), "stream": False})
        assert (refused.status_code, "is there already" in refused.text) == (400, True), refused.text
        assert client.request("DELETE", "/api/delete", json={"model": mine.name.lower()}).status_code == 404
        assert (config.read_text(), (mine / "thesis.txt").exists()) == (seen, True)
        source.pages[page] = kept
        (config.parent / "mine.mmproj").write_text("a projector")
        assert client.post("/api/pull", json={"model": HF, "stream": False}).json() == {"status": "success"}
        config.write_text(
            config.read_text().replace("path: tiny.gguf", "path: tiny.gguf\n    mmproj_path: mine.mmproj")
        )
        assert client.request("DELETE", "/api/delete", json={"model": "tiny"}).status_code == 200
    assert ((config.parent / "tiny.gguf").exists(), (config.parent / "mine.mmproj").exists()) == (False, True)


def test_errors_are_lines_or_statuses(url: str, source: Source, config: Path) -> None:
    before = config.read_text()
    source.cuts = [0] * ATTEMPTS
    nothing = "/api/models/someone/Nothing/revision/main"
    source.statuses, source.codes = {nothing: 404}, {nothing: "RepoNotFound"}
    with ollama.Client(host=url, timeout=PATIENCE) as client:
        with pytest.raises(ollama.ResponseError, match="continues where this one stopped"):
            list(client.pull(f"hf.co/{REPO}", stream=True))
        with pytest.raises(ollama.ResponseError, match="hub has no someone/Nothing"):
            client.pull("hf.co/someone/Nothing")
        with pytest.raises(ollama.ResponseError, match="can be pulled only from"):
            client.pull("registry.example/a/b")
        with pytest.raises(ollama.ResponseError, match="is the active model"):
            client.delete("echo")
        with pytest.raises(ollama.ResponseError, match="there is no model 'nobody'") as missing:
            client.delete("nobody")
        assert missing.value.status_code == 404
    assert config.read_text() == before


def test_one_at_a_time(url: str, source: Source) -> None:
    with httpx.Client(base_url=url, timeout=PATIENCE) as client, httpx.Client(base_url=url, timeout=PATIENCE) as other:
        source.hold.clear()
        with client.stream("POST", "/api/pull", json={"model": f"hf.co/{REPO}"}) as answer:
            lines = answer.iter_lines()
            assert json.loads(next(lines))["status"] == "pulling manifest"
            refused = other.post("/api/pull", json={"model": "mine"})
            assert (refused.status_code, "only one pull" in refused.json()["error"]) == (429, True)
            source.hold.set()
            assert json.loads([*lines][-1]) == {"status": "success"}
        assert other.post("/api/pull", json={"model": "mine", "stream": False}).json() == {"status": "success"}


@pytest.mark.parametrize(
    "headers", [{"origin": "https://app.example"}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-origin"}]
)
def test_no_web_page_may(headers: dict[str, str], url: str, source: Source, config: Path) -> None:
    """Not even where `cors_origins` lets every page chat, nor one that the gateway itself might serve."""
    before = config.read_text()
    with httpx.Client(base_url=url, headers=headers, timeout=PATIENCE) as client:
        for method, path, model in (("POST", "/api/pull", HF), ("DELETE", "/api/delete", "mine")):
            answer = client.request(method, path, json={"model": model})
            assert (answer.status_code, "web pages may not" in answer.json()["error"]) == (403, True)
    assert source.asked == []
    assert config.read_text() == before


def test_no_stranger_may(url: str, source: Source, config: Path, tmp_path: Path) -> None:
    before = config.read_text()
    _, key = KeyFile(tmp_path / "state" / FILE).add(scopes=("models",))
    deadline = time.monotonic() + PATIENCE
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:
        # The gateway looks at its keys once a second.
        while client.get("/v1/models").status_code != 401:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        for headers, status in (({}, 401), ({"authorization": f"Bearer {key}"}, 403)):
            for method, path in (("POST", "/api/pull"), ("DELETE", "/api/delete")):
                answer = client.request(method, path, json={"model": "mine"}, headers=headers)
                assert answer.status_code == status
    assert source.asked == []
    assert config.read_text() == before


def test_a_gateway_without_a_file(tmp_path: Path) -> None:
    models = {"echo": Model(name="echo", runtime="echo")}
    made = Config(source=tmp_path / "config.yaml", active_model="echo", models=models, state_dir=tmp_path)
    with ExitStack() as stack:
        url = stack.enter_context(serve(build(made), lifespan="on", http=FAST))
        answer = httpx.post(f"{url}/api/pull", json={"model": "mine"}, timeout=PATIENCE)
    assert (answer.status_code, "wasn't started from a file" in answer.json()["error"]) == (400, True)

"""Ollama pulls by itself; we report its progress and errors."""

from __future__ import annotations

import json

import pytest

from gateway.config import Model, PullSource
from gateway.errors import GatewayError, ProviderInvalidModel, ProviderInvalidResponse, ProviderUnavailable
from gateway.features.models.pull import pull
from tests.models.pull.sources import Source, serving


def lines(*said: object) -> tuple[str, bytes]:
    return "application/x-ndjson", b"".join(json.dumps(one).encode() + b"\n" for one in said)


def model(url: str) -> Model:
    return Model(name="q", runtime="ollama", base_url=url, pull=PullSource(kind="ollama", name="qwen2.5:32b"))


LAYER = {"status": "pulling 170370233dd5", "digest": "sha256:170370233dd5c5", "total": 10}


def test_pull() -> None:
    said = lines(
        {"status": "pulling manifest"}, {**LAYER, "completed": 4}, LAYER | {"completed": 10}, {"status": "success"}
    )
    seen = []
    with serving(Source(pages={"/api/pull": said})) as ollama:
        assert pull(model(ollama.url), lambda *step: seen.append(step)) is None
    assert [json.loads(body) for body in ollama.bodies] == [{"model": "qwen2.5:32b", "stream": True}]
    assert seen == [("qwen2.5:32b 170370233dd5", 4, 10), ("qwen2.5:32b 170370233dd5", 10, 10)]


def test_each_replica_gets_the_model() -> None:
    pages = {"/api/pull": lines({"status": "success"})}
    with serving(Source(pages=pages)) as one, serving(Source(pages=pages)) as two:
        source = PullSource(kind="ollama", name="qwen2.5:32b")
        pull(Model(name="q", runtime="ollama", replicas=(one.url, two.url), pull=source), lambda *step: None)
    assert [len(one.bodies), len(two.bodies)] == [1, 1]


@pytest.mark.parametrize(
    ("said", "error", "message"),
    [
        (lines({"error": "pull model manifest: file does not exist"}), ProviderInvalidModel, "has no qwen2.5:32b"),
        (lines({"status": "x"}, {"error": "disk is full"}), ProviderUnavailable, "disk is full"),
        (lines(LAYER), ProviderInvalidResponse, "without success"),
        (lines([1]), ProviderInvalidResponse, "isn't an object"),
        (("text/html", b"<html>\n"), ProviderInvalidResponse, "isn't JSON"),
    ],
    ids=["unknown", "failed", "ended", "list", "html"],
)
def test_failures(said: tuple[str, bytes], error: type[GatewayError], message: str) -> None:
    with serving(Source(pages={"/api/pull": said})) as ollama, pytest.raises(error, match=message):
        pull(model(ollama.url), lambda *step: None)


def test_refused() -> None:
    with (
        serving(Source(statuses={"/api/pull": 500})) as ollama,
        pytest.raises(ProviderUnavailable, match=r"can't pull qwen2\.5:32b: refused"),
    ):
        pull(model(ollama.url), lambda *step: None)


def test_not_running() -> None:
    with serving(Source()) as gone:
        pass
    with pytest.raises(ProviderUnavailable, match="start it with `ollama serve`"):
        pull(model(gone.url), lambda *step: None)

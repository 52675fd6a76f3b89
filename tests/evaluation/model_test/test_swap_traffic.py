"""`ctxgate swap --gate traffic` with a running gateway, its recordings, and the same requests asked of real engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.config import load
from gateway.features.evaluation.commands.swap_traffic import elsewhere
from tests.cli.commands import answering, serving
from tests.evaluation.model_test.swapping import swap
from tests.patience import PATIENCE
from tests.ports import free_port

SECRET = "the secret of the conversation"

CONFIG = """\
active_model: {active}
server: {{port: {port}}}
log: {{bodies: true, requests: 2000}}
models:
  right: {{runtime: llama.cpp, path: {model}, context_window: 2048, tool_call_format: pythonic}}
  twin: {{runtime: llama.cpp, path: {model}, context_window: 2048, tool_call_format: pythonic}}
  wrong: {{runtime: llama.cpp, path: {model}, context_window: 2048, tool_call_format: hermes}}
  says: {{runtime: echo}}
  repeats: {{runtime: echo}}
  cut: {{runtime: echo, force_params: {{max_tokens: 1}}}}
  far: {{runtime: openai, base_url: "https://models.example/v1"}}
  falls: {{runtime: echo, fallbacks: [far]}}
  near: {{runtime: openai, base_url: "http://127.0.0.1:9"}}
  cloud: {{runtime: ollama, model_name: "big:120b-cloud"}}
  own: {{runtime: "somebody.s:Backend"}}
"""

TOOL = {
    "name": "get_weather",
    "description": "Current weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


class Running:
    def __init__(self, config: Path, client: httpx.Client) -> None:
        self.config = config
        self._client = client

    def ask(self, text: str, **fields: Any) -> None:
        body = {"messages": [{"role": "user", "content": text}], **fields}
        assert self._client.post("/chat/completions", json=body).status_code == 200


def running(tmp_path: Path, test_model: Path, active: str) -> Iterator[Running]:
    port = free_port()
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.format(active=active, port=port, model=test_model), "utf-8")
    with (
        serving(tmp_path, "--config", config, "--port", str(port)),
        answering(port),
        httpx.Client(base_url=f"http://127.0.0.1:{port}/v1", trust_env=False, timeout=PATIENCE) as client,
    ):
        yield Running(config, client)


@pytest.fixture
def echoing(tmp_path: Path, test_model: Path) -> Iterator[Running]:
    yield from running(tmp_path, test_model, "says")


@pytest.fixture
def calling(tmp_path: Path, test_model: Path) -> Iterator[Running]:
    yield from running(tmp_path, test_model, "right")


def test_the_same_is_promoted_and_a_worse_one_kept_out(echoing: Running, tmp_path: Path) -> None:
    for number in range(215):
        echoing.ask(f"Say {number}: {SECRET}", stream=number % 2 == 0)
    before = echoing.config.read_bytes()
    stopped = swap(echoing.config, "cut", "--gate", "traffic", "--worst", "1")
    assert stopped.returncode == 1, stopped.stderr
    assert "says stays the active model; nothing changed" in stopped.stderr
    assert "conform: truncated: max_tokens was reached" in stopped.stdout
    # Side by side: what the one said, and what the other.
    assert f"Say 214: {SECRET}" in stopped.stdout
    assert "finish: length" in stopped.stdout
    assert "214 more requests that only cut answers wrong" in stopped.stdout
    assert echoing.config.read_bytes() == before
    done = swap(echoing.config, "repeats", "--gate", "traffic")
    assert done.returncode == 0, done.stderr
    assert "repeats is not shown to be worse in 215 requests" in done.stdout
    assert load(echoing.config, {}).active_model == "repeats"
    left = [file for file in tmp_path.rglob("*") if file.is_file() and SECRET.encode() in file.read_bytes()]
    assert left == []


@pytest.mark.slow
def test_real_calls_read_in_a_wrong_format(calling: Running) -> None:
    tools = [{"type": "function", "function": TOOL}]
    for city in ("Paris", "Rome", "Oslo", "Lima", "Bern", "Kyiv", "Cairo", "Quito"):
        calling.ask(f"What is the weather in {city}?", tools=tools, max_tokens=60)
    stopped = swap(calling.config, "wrong", "--gate", "traffic")
    assert stopped.returncode == 1, stopped.stdout + stopped.stderr
    assert "WORSE" in stopped.stdout
    assert "get_weather" in stopped.stdout
    few = swap(calling.config, "twin", "--gate", "traffic")
    assert few.returncode == 4, few.stderr
    assert (
        "too few requests to decide: 8; with as many changes as these have, a drop of 5 points shows in 209"
        in few.stderr
    )
    assert load(calling.config, {}).active_model == "right"


def test_conversations_stay_on_this_machine(echoing: Running) -> None:
    echoing.ask(SECRET)
    done = swap(echoing.config, "far", "--gate", "traffic")
    assert done.returncode == 2
    assert "far is at models.example: the recorded conversations would leave this machine" in done.stderr
    assert "--send-conversations" in done.stderr
    config = load(echoing.config, {})
    found = {
        name: elsewhere(config.models[name], config) for name in ("falls", "near", "cloud", "own", "right", "says")
    }
    assert found == {
        "falls": "far is at models.example",
        "near": None,
        "cloud": "cloud runs in Ollama's cloud",
        "own": "own has the backend somebody.s:Backend, and no address that shows where it runs",
        "right": None,
        "says": None,
    }


def test_nothing_recorded(echoing: Running) -> None:
    done = swap(echoing.config, "repeats", "--gate", "traffic")
    assert done.returncode == 4
    assert "there are no recordings for says: set log: {bodies: true}" in done.stderr


def test_no_gateway_to_ask(tmp_path: Path, test_model: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.format(active="says", port=free_port(), model=test_model), "utf-8")
    done = swap(config, "repeats", "--gate", "traffic")
    assert done.returncode != 0
    assert "no gateway answers" in done.stderr

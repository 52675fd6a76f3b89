"""A model's `call_threshold` decides on every API alike, and in batches and rooms."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.app import build
from gateway.config import Config, Model, Runtime, Server
from tests.conftest import ROOT
from tests.gateway.running import FAST, NO_COMMENTS
from tests.patience import PATIENCE
from tests.provider.server import serve

Json = dict[str, Any]
THRESHOLDS = {"calls": 0.0, "words": 1.0}
"""Models, by what all their answers are where tools are offered."""
QUESTION = "What is the weather in Paris in celsius?"
CITY: Json = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
WEATHER: Json = {"name": "get_weather", "description": "Current weather in a city.", "parameters": CITY}
ASKED: Json = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 40}
TOOLS: list[Json] = [{"type": "function", "function": WEATHER}]
BODIES: dict[str, Json] = {
    "/v1/chat/completions": {**ASKED, "tools": TOOLS},
    "/v1/messages": {**ASKED, "tools": [{"name": "get_weather", "input_schema": CITY}]},
    "/v1/responses": {"input": QUESTION, "tools": [{"type": "function", **WEATHER}], "max_output_tokens": 40},
    "/api/chat": {"messages": ASKED["messages"], "tools": TOOLS, "options": {"num_predict": 40}},
}


@pytest.fixture(scope="module")
def http(test_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed")
    models = {
        name: Model(
            name=name,
            runtime="llama.cpp",
            path=test_model,
            context_window=2048,
            tool_call_format="pythonic",
            call_threshold=threshold,
            tool_examples=("ask", "hello"),
            parallel_tool_calls=False,
            defaults={"temperature": 0, "max_tokens": 40},
            engine=Runtime(threads=1, parallel=1),
        )
        for name, threshold in THRESHOLDS.items()
    }
    config = Config(
        source=ROOT / "_models/config.yaml",
        active_model="calls",
        models=models,
        state_dir=tmp_path_factory.mktemp("state"),
        server=Server(**NO_COMMENTS),
    )
    with ExitStack() as stack:
        url = stack.enter_context(serve(build(config), lifespan="on", http=FAST))
        yield stack.enter_context(httpx.Client(base_url=url, timeout=PATIENCE))


def decided(http: httpx.Client) -> dict[tuple[str, str], float]:
    """How many answers of each model were decided to be what."""
    return {
        (sample.labels["model"], sample.labels["what"]): sample.value
        for family in text_string_to_metric_families(http.get("/metrics").text)
        for sample in family.samples
        if sample.name == "ctxgate_decided_answers_total"
    }


def after(http: httpx.Client, work: Callable[[], object]) -> dict[tuple[str, str], float]:
    """What the work has added."""
    before = decided(http)
    work()
    return {key: count - before.get(key, 0) for key, count in decided(http).items() if count != before.get(key, 0)}


def done(answer: httpx.Response) -> Json:
    assert answer.status_code < 300, answer.text
    return dict(answer.json()) if answer.headers["content-type"].startswith("application/json") else {}


@pytest.mark.parametrize("model", THRESHOLDS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_each_api(http: httpx.Client, path: str, stream: bool, model: str) -> None:
    body = {**BODIES[path], "model": model, "stream": stream}
    assert after(http, lambda: done(http.post(path, json=body))) == {(model, model): 1}


@pytest.mark.parametrize("model", THRESHOLDS)
def test_a_batch(http: httpx.Client, model: str) -> None:
    path = "/v1/chat/completions"
    line = {"custom_id": "a", "method": "POST", "url": path, "body": {**BODIES[path], "model": model}}

    def run() -> None:
        files = {"file": ("lines.jsonl", json.dumps(line).encode())}
        file = done(http.post("/v1/files", data={"purpose": "batch"}, files=files))
        asked = {"input_file_id": file["id"], "endpoint": path, "completion_window": "24h"}
        batch = done(http.post("/v1/batches", json=asked))
        while batch["status"] not in ("completed", "failed", "expired", "cancelled"):
            time.sleep(0.02)
            batch = done(http.get(f"/v1/batches/{batch['id']}"))
        assert batch["status"] == "completed"

    assert after(http, run) == {(model, model): 1}


def test_a_room(http: httpx.Client) -> None:
    """Its agent has the active model. One answer at least: what comes after a tool's result is for the model."""

    def run() -> None:
        settings = {"tool_policy": {"access": "edit", "allow": ["tool.mkdir"]}}
        room = done(http.post("/llm/room", json=settings))["data"]["id"]
        done(http.post(f"/llm/room/{room}/messages", json={"content": "Create the folder /notes"}))
        while done(http.get(f"/llm/room/{room}"))["data"]["status"] in ("active", "releasing"):
            time.sleep(0.02)

    assert after(http, run).keys() == {("calls", "calls")}

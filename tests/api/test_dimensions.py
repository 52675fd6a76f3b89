"""`dimensions` of vectors: what the model's vectors don't have can't be given, in either API."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.backends.ollama_double import OllamaDouble
from tests.gateway.before_ollama import before
from tests.gateway.double import Json, answers
from tests.gateway.running import running
from tests.patience import PATIENCE

APIS: dict[str, tuple[str, str]] = {
    "openai": ("/v1/embeddings", "input"),
    "ollama": ("/api/embed", "input"),
    "ollama, its old one": ("/api/embeddings", "prompt"),
}


@pytest.fixture
def http(real: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=real, timeout=PATIENCE) as client:
        yield client


def vectors(answer: Json) -> list[Any]:
    if "data" in answer:
        return [one["embedding"] for one in answer["data"]]
    return answer["embeddings"] if "embeddings" in answer else [answer["embedding"]]


def message(answer: Json) -> str:
    return answer["error"] if isinstance(answer["error"], str) else answer["error"]["message"]


@pytest.mark.parametrize("api", APIS)
def test_each_number_of_dimensions(api: str, http: httpx.Client) -> None:
    path, text = APIS[api]
    (whole,) = vectors(http.post(path, json={"model": "vectors", text: "one"}).json())
    size = len(whole)
    for dimensions in (1, 2, size // 2, size - 1, size):
        answer = http.post(path, json={"model": "vectors", text: "one", "dimensions": dimensions})
        (found,) = vectors(answer.json())
        assert (answer.status_code, len(found)) == (200, dimensions)
        assert math.hypot(*found) == pytest.approx(math.hypot(*whole) if dimensions == size else 1)
        scale = found[0] / whole[0]
        assert found == pytest.approx([number * scale for number in whole[:dimensions]])
    for dimensions in (size + 1, 99_999):
        answer = http.post(path, json={"model": "vectors", text: "one", "dimensions": dimensions})
        assert answer.status_code == 400
        assert f"dimensions: the model's vectors have {size} numbers: ask for 1 to {size}" in message(answer.json())


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(("dimensions", "status"), [(-1, 400), (True, 400), ("8", 400), (1.5, 400), (None, 200)])
def test_what_is_no_number_of_dimensions(dimensions: Any, status: int, api: str, http: httpx.Client) -> None:
    path, text = APIS[api]
    answer = http.post(path, json={"model": "vectors", text: "one", "dimensions": dimensions})
    assert answer.status_code == status
    assert status == 200 or "dimensions" in message(answer.json())


def test_none_at_all(http: httpx.Client) -> None:
    """0 is an error of OpenAI's API. Ollama reads it as if it weren't there."""
    assert http.post("/v1/embeddings", json={"model": "vectors", "input": "one", "dimensions": 0}).status_code == 400
    whole, zero = (
        http.post("/api/embed", json={"model": "vectors", "input": "one", **more}).json()["embeddings"]
        for more in ({}, {"dimensions": 0})
    )
    assert zero == whole


@pytest.mark.parametrize("dimensions", [None, 3])
def test_base64_has_the_same_numbers(dimensions: int | None, http: httpx.Client) -> None:
    body = {"model": "vectors", "input": ["one", "two"], "dimensions": dimensions}
    plain = vectors(http.post("/v1/embeddings", json=body).json())
    coded = vectors(http.post("/v1/embeddings", json={**body, "encoding_format": "base64"}).json())
    for numbers, text in zip(plain, coded, strict=True):
        assert struct.unpack(f"<{len(numbers)}f", base64.b64decode(text)) == pytest.approx(numbers, rel=1e-6)
    refused = http.post("/v1/embeddings", json={**body, "encoding_format": "base64", "dimensions": 99_999})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "dimensions")


@pytest.mark.parametrize("api", APIS)
async def test_on_any_server(api: str) -> None:
    path, text = APIS[api]
    made = {"data": [{"index": 0, "embedding": [3.0, 4.0, 12.0]}], "usage": {"prompt_tokens": 1, "total_tokens": 1}}
    async with running(answers(made), role="embedding") as gateway:
        assert (await gateway.ask({"model": "m", text: "a", "dimensions": 4}, path)).status == 400
        short = await gateway.ask({"model": "m", text: "a", "dimensions": 2}, path)
        assert vectors(short.json) == [[0.6, 0.8]]
        # The engine gets no such field: few servers know it.
        assert "dimensions" not in (await gateway.engine.asked()).json


async def test_on_an_ollama() -> None:
    async with before(OllamaDouble({"vectors": ["embedding"]}), "vectors", role="embedding") as gateway:
        for path in ("/v1/embeddings", "/api/embed"):
            answer = await gateway.ask({"model": "m", "input": ["a", "b"], "dimensions": 3}, path)
            assert (answer.status, "have 2 numbers" in message(answer.json)) == (400, True)
            assert (await gateway.ask({"model": "m", "input": ["a", "b"], "dimensions": 2}, path)).status == 200

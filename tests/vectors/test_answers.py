"""Answers of engines that give vectors, as clients get them."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from gateway.features.vectors.wire.embeddings import Vectors
from tests.gateway.double import answers
from tests.gateway.running import running
from tests.patience import PATIENCE

ASKED: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"input": ["a", "b"]},
    "/v1/rerank": {"query": "q", "documents": ["a"]},
    "/api/embed": {"input": ["a", "b"]},
    "/api/embeddings": {"prompt": "a"},
}


@pytest.mark.parametrize("path", ASKED)
async def test_an_engine_without_vectors_is_a_bad_gateway(path: str) -> None:
    async with running(answers({"data": []}), role="embedding") as gateway:
        answer = await gateway.ask({"model": "m", **ASKED[path]}, path)
    assert answer.status == 502


@pytest.mark.parametrize("path", [path for path in ASKED if path != "/api/embeddings"])
async def test_nobody_waits_while_many_vectors_are_read(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, go_on = threading.Event(), threading.Event()
    parse = Vectors.parse

    def slow(data: bytes, count: int) -> Vectors:
        reading.set()
        go_on.wait(PATIENCE)
        return parse(data, count)

    monkeypatch.setattr(Vectors, "parse", slow)
    vectors = json.dumps({"data": [{"index": at, "embedding": [0.125] * 50_000} for at in range(2)]}).encode()
    async with running(answers(vectors), role="embedding") as gateway:
        asking = asyncio.create_task(gateway.ask({"model": "m", **ASKED[path]}, path))
        assert await asyncio.to_thread(reading.wait, PATIENCE)
        chat = {"model": "echo", "messages": [{"role": "user", "content": "Hi"}]}
        assert (await gateway.ask(chat)).status == 200
        go_on.set()
        assert (await asking).status == 200

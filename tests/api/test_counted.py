"""Every API: each request has one entry in the request log and is counted once, with its outcome."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families as families

from tests.gateway.double import Exchange, answers, endless
from tests.gateway.running import running
from tests.patience import PATIENCE

Json = dict[str, Any]

HI = [{"role": "user", "content": "Hi"}]
LONG = "word " * 3000
TOO_LONG = [{"role": "user", "content": LONG}]

STREAMING: dict[str, tuple[str, str, Json, Json]] = {
    "chat": ("chat", "/v1/chat/completions", {"max_tokens": 2}, {"messages": HI}),
    "responses": ("responses", "/v1/responses", {"max_output_tokens": 16, "store": False}, {"input": "Hi"}),
    "messages": ("messages", "/v1/messages", {"max_tokens": 2}, {"messages": HI}),
    "completions": ("completions", "/v1/completions", {"max_tokens": 2}, {"prompt": "Hi"}),
    "ollama, chat": ("ollama", "/api/chat", {"options": {"num_predict": 2}}, {"messages": HI}),
    "ollama, generate": ("ollama", "/api/generate", {"options": {"num_predict": 2}}, {"prompt": "Hi"}),
}
"""API, path, settings, question; all of them stream."""

WHOLE: dict[str, tuple[str, str, Json]] = {
    "embeddings": ("embeddings", "/v1/embeddings", {"input": "Hi"}),
    "rerank": ("rerank", "/v1/rerank", {"query": "Hi", "documents": ["Ho", "Hu"]}),
    "ollama, raw": ("ollama", "/api/generate", {"model": "tiny", "raw": True, "prompt": "Hi", "stream": False}),
    "ollama, embed": ("ollama", "/api/embed", {"model": "vectors", "input": "Hi"}),
    "ollama, embeddings": ("ollama", "/api/embeddings", {"model": "vectors", "prompt": "Hi"}),
}

FAILING: dict[str, tuple[str, str, str, Json]] = {
    "responses": ("responses", "tiny", "/v1/responses", {"input": LONG, "store": False}),
    "messages": ("messages", "tiny", "/v1/messages", {"messages": TOO_LONG, "max_tokens": 2}),
    "completions": ("completions", "tiny", "/v1/completions", {"prompt": LONG}),
    "completions, streamed": ("completions", "tiny", "/v1/completions", {"prompt": LONG, "stream": True}),
    "completions without an endpoint": ("completions", "echo", "/v1/completions", {"prompt": "Hi"}),
    "embeddings": ("embeddings", "vectors", "/v1/embeddings", {"input": LONG}),
    "rerank": ("rerank", "vectors", "/v1/rerank", {"query": "Hi", "documents": [LONG]}),
    "ollama": ("ollama", "tiny", "/api/chat", {"messages": TOO_LONG}),
    "ollama, embed": ("ollama", "vectors", "/api/embed", {"input": LONG}),
}


def counts(url: str) -> dict[tuple[str, str, str], float]:
    """By model, API and outcome."""
    text = httpx.get(f"{url}/metrics", timeout=PATIENCE).raise_for_status().text
    return {
        (sample.labels["model"], sample.labels["api"], sample.labels["outcome"]): sample.value
        for family in families(text)
        for sample in family.samples
        if sample.name == "ctxgate_requests_total"
    }


def entries(url: str) -> list[Json]:
    """The newest first."""
    found: list[Json] = httpx.get(f"{url}/-/requests", timeout=PATIENCE).raise_for_status().json()["requests"]
    return found


def asked(url: str, path: str, body: Json) -> tuple[int, Json]:
    """The status of the answer and its one entry."""
    before, log = counts(url), entries(url)
    status = httpx.post(f"{url}{path}", json=body, timeout=PATIENCE).status_code
    last = log[0]["id"] if log else 0
    (entry,) = [entry for entry in entries(url) if entry["id"] > last]
    after = counts(url)
    assert entry["api"] == entry["face"]
    key = entry["model"], entry["api"], entry["outcome"]
    assert {key: after[key] - before.get(key, 0) for key in after if after[key] != before.get(key, 0)} == {key: 1}
    return status, entry


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", STREAMING)
def test_streaming_apis(real: str, name: str, stream: bool) -> None:
    api, path, settings, question = STREAMING[name]
    status, entry = asked(real, path, {"model": "tiny", "stream": stream, **settings, **question})
    assert status == 200
    assert (entry["model"], entry["api"], entry["outcome"], entry["stream"]) == ("tiny", api, "ok", stream)
    assert (entry["first_seconds"] is not None) is stream
    if name != "completions" or not stream:  # which tells them if the client asks for them
        assert entry["prompt_tokens"] > 0
        assert entry["completion_tokens"] > 0


@pytest.mark.parametrize("name", WHOLE)
def test_other_apis(real: str, name: str) -> None:
    api, path, body = WHOLE[name]
    status, entry = asked(real, path, body)
    assert (status, entry["api"], entry["outcome"], entry["stream"]) == (200, api, "ok", False)
    assert entry["prompt_tokens"] > 0


def test_a_stream_with_usage(real: str) -> None:
    body = {"prompt": "Hi", "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}}
    _, entry = asked(real, "/v1/completions", body)
    assert entry["completion_tokens"] == 2


@pytest.mark.parametrize("name", FAILING)
def test_errors(real: str, name: str) -> None:
    api, model, path, body = FAILING[name]
    status, entry = asked(real, path, {"model": model, **body})
    assert (status, entry["model"], entry["api"]) == (400, model, api)
    assert entry["outcome"] == "provider_invalid_request"


BROKEN = b'{"choices": [{"index": 0, "text": "He"}]}', b'{"error": {"message": "out of memory"}}'


@pytest.mark.parametrize("breaks", [True, False], ids=["error", "cut"])
async def test_a_stream_that_breaks(breaks: bool) -> None:
    seen = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.event(BROKEN[0])
        await seen.wait()
        if breaks:
            await exchange.event(BROKEN[1])
        await exchange.end(done=breaks)

    async with running(script) as gateway, await gateway.connect() as client:
        await client.post({"prompt": "Hi", "stream": True}, "/v1/completions")
        assert (await client.head())[1] == 200
        parts = client.parts()
        assert b'"text":"He"' in await anext(parts)
        seen.set()
        rest = b"".join([part async for part in parts])
        assert b'"category":"provider_unavailable"' in rest
        assert rest.endswith(b"data: [DONE]\n\n")
        (entry,) = await asyncio.to_thread(entries, gateway.url)
        found = entry["api"], entry["outcome"], entry["stream"]
        assert found == ("completions", "provider_unavailable", True)


async def test_a_client_that_leaves_is_counted() -> None:
    async with running(endless) as gateway:
        async with await gateway.connect() as client:
            await client.post({"prompt": "Hi", "stream": True}, "/v1/completions")
            await client.reader.readuntil(b"data: ")
        async with asyncio.timeout(PATIENCE):
            await gateway.engine.requests[0].gone
        (entry,) = await asyncio.to_thread(entries, gateway.url)
        assert (entry["api"], entry["outcome"]) == ("completions", "client_left")


async def test_an_unreadable_answer_is_counted() -> None:
    async with running(answers(b'{"data": "none"}'), role="embedding") as gateway:
        answer = await gateway.ask({"model": "m", "input": "Hi"}, "/v1/embeddings")
        assert answer.status == 502
        (entry,) = await asyncio.to_thread(entries, gateway.url)
        assert (entry["api"], entry["outcome"]) == ("embeddings", "provider_invalid_response")

"""Observers: what they see of calls that succeed, fail, are retried, streamed and left, and OpenTelemetry's spans."""

from __future__ import annotations

import json
import sys
from typing import Any

import httpx
import pytest

from gateway.errors import ProviderInvalidRequest, ProviderRateLimit
from gateway.provider import Attempt, OpenAIProvider, Response, Retry, RuntimeConfig, TextDelta, UserMessage
from gateway.provider.otel import OpenTelemetry
from gateway.provider.retrieval import EmbeddingRuntimeConfig, OpenAIEmbedding, TEIRerank

from .conformance import Recorder
from .doubles import SERVER
from .server import completion

HI = [UserMessage("a secret")]
CHUNKS = [{"choices": [{"index": 0, "delta": {"content": part}, "finish_reason": None}]} for part in "abc"]
STREAM = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in CHUNKS)
ENDED = STREAM + 'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'


def client(*answers: httpx.Response) -> httpx.AsyncClient:
    left = list(answers)
    return httpx.AsyncClient(transport=httpx.MockTransport(lambda _: left.pop(0)))


def answered(content: str = "a reply", **usage: Any) -> httpx.Response:
    body = completion(content)
    body["usage"] |= usage
    return httpx.Response(200, json=body)


def streamed(text: str) -> httpx.Response:
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, text=text)


async def none(_: float) -> None:
    """Doesn't wait."""


async def test_an_attempt_ends_with_its_response() -> None:
    recorder = Recorder()
    provider = OpenAIProvider(SERVER, "m", http_client=client(answered()), observer=recorder)
    response = await provider.complete(HI, config=RuntimeConfig(temperature=0.5, extra={"top_k": 1}))
    (span,) = recorder.spans
    assert span.attempt == Attempt("complete", "openai", "m", parameters={"temperature": 0.5})
    assert span.outcome is response


async def test_a_call_that_is_refused_unsent_is_seen_too() -> None:
    recorder = Recorder()
    provider = OpenAIProvider(SERVER, "m", http_client=client(), observer=recorder)
    with pytest.raises(ProviderInvalidRequest) as caught:
        await provider.complete([])
    assert recorder.spans[0].outcome is caught.value


async def test_each_attempt_of_a_retry_is_one() -> None:
    recorder = Recorder()
    refusals = [httpx.Response(429, json={"error": {"message": "slow"}})] * 2
    provider = OpenAIProvider(SERVER, "m", http_client=client(*refusals, answered()), observer=recorder)
    await provider.complete(HI, retry=Retry(sleep=none))
    assert [(s.attempt.index, s.attempt.retry_reason) for s in recorder.spans] == [
        (0, None),
        (1, "transient"),
        (2, "transient"),
    ]
    assert [type(s.outcome) for s in recorder.spans] == [ProviderRateLimit, ProviderRateLimit, Response]


async def test_a_stream_ends_when_it_was_read() -> None:
    recorder = Recorder()
    provider = OpenAIProvider(SERVER, "m", http_client=client(streamed(ENDED)), observer=recorder)
    async with await provider.complete(HI, stream=True) as stream:
        (span,) = recorder.spans
        assert (span.attempt.stream, span.outcome) == (True, None)
        response = await stream.response()
    assert span.deltas == [TextDelta(part) for part in "abc"]
    assert span.outcome is response


@pytest.mark.parametrize(
    ("body", "read"),
    [(STREAM, 3), (ENDED, 1), (ENDED, 0)],
    ids=["broken off by the server", "left by the caller", "left unread"],
)
async def test_a_stream_that_ends_early_ends_once(body: str, read: int) -> None:
    recorder = Recorder()
    provider = OpenAIProvider(SERVER, "m", http_client=client(streamed(body)), observer=recorder)
    async with await provider.complete(HI, stream=True) as stream:
        for _ in range(read):
            await anext(stream)
        if read == 3:
            with pytest.raises(Exception, match="broke off"):
                await anext(stream)
    assert isinstance(recorder.spans[0].outcome, BaseException)


class Tracer:
    """Keeps the spans that OpenTelemetry would export."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def start_span(self, name: str, kind: Any, attributes: dict[str, Any]) -> Span:
        self.spans.append(Span(name, dict(attributes)))
        return self.spans[-1]


class Span:
    def __init__(self, name: str, attributes: dict[str, Any]) -> None:
        self.name = name
        self.attributes = attributes
        self.status: str | None = None
        self.events: list[str] = []
        self.ended = 0

    def set_attributes(self, more: dict[str, Any]) -> None:
        assert None not in more.values()
        self.attributes |= more

    def set_status(self, code: Any, description: str) -> None:
        self.status = f"{code.name} {description}"

    def add_event(self, name: str) -> None:
        self.events.append(name)

    def end(self) -> None:
        self.ended += 1


async def test_the_span_of_a_completion() -> None:
    tracer = Tracer()
    observer = OpenTelemetry(tracer, system="vllm")
    answer = answered(prompt_tokens="bad", prompt_tokens_details={"cached_tokens": 0})
    provider = OpenAIProvider(SERVER, "m", http_client=client(answer), observer=observer)
    await provider.complete(HI, config=RuntimeConfig(max_tokens=9, stop_sequences=("x",), extra={"private": 1}))
    (span,) = tracer.spans
    assert (span.name, span.status, span.ended) == ("openarmature.llm.complete", None, 1)
    assert span.attributes == {
        "gen_ai.system": "vllm",
        "gen_ai.request.model": "m",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.stop_sequences": ["x"],
        "gen_ai.response.model": "m",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.output_tokens": 2,
        "openarmature.llm.model": "m",
        "openarmature.llm.attempt_index": 0,
        "openarmature.llm.finish_reason": "stop",
        "openarmature.llm.usage.completion_tokens": 2,
        "openarmature.llm.usage.total_tokens": 5,
        "openarmature.llm.cache_read.input_tokens": 0,
    }


async def test_the_spans_of_failures() -> None:
    tracer = Tracer()
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    provider = OpenAIProvider(
        SERVER,
        "m",
        http_client=client(answered("{}"), httpx.Response(503, text="down")),
        observer=OpenTelemetry(tracer),
    )
    policy = Retry(max_attempts=2, reask=lambda error: "again", sleep=none)
    with pytest.raises(Exception, match="down"):
        await provider.complete(HI, response_schema=schema, retry=policy)
    first, second = tracer.spans
    assert (first.status, second.status) == ("ERROR structured_output_invalid", "ERROR provider_unavailable")
    assert first.attributes["openarmature.llm.finish_reason"] == "stop"
    assert second.attributes["openarmature.llm.retry_reason"] == "reask"
    assert "openarmature.llm.finish_reason" not in second.attributes
    assert not any("secret" in str(span.attributes) for span in tracer.spans)


async def test_the_span_of_a_stream_says_when_it_began() -> None:
    tracer = Tracer()
    provider = OpenAIProvider(SERVER, "m", http_client=client(streamed(ENDED)), observer=OpenTelemetry(tracer))
    async with await provider.complete(HI, stream=True) as stream:
        await stream.response()
    assert tracer.spans[0].events == ["first_delta"]


async def test_the_spans_of_retrieval() -> None:
    tracer = Tracer()
    observer = OpenTelemetry(tracer)
    vectors = httpx.Response(200, json={"data": [{"index": 0, "embedding": [1, 2]}], "usage": {"prompt_tokens": 4}})
    embedder = OpenAIEmbedding(SERVER, "e", http_client=client(vectors), observer=observer)
    await embedder.embed(["a secret"], config=EmbeddingRuntimeConfig(input_type="query"))
    scores = httpx.Response(200, json=[{"index": 0, "score": 0.5}])
    await TEIRerank(SERVER, "r", http_client=client(scores), observer=observer).rerank("é", ["a secret"], top_k=3)
    embedded, ranked = tracer.spans
    assert (embedded.name, ranked.name) == ("openarmature.embedding.complete", "openarmature.rerank.complete")
    assert embedded.attributes == {
        "gen_ai.system": "openai",
        "gen_ai.request.model": "e",
        "gen_ai.response.model": "e",
        "gen_ai.usage.input_tokens": 4,
        "openarmature.embedding.input_count": 1,
        "openarmature.embedding.input_type": "query",
        "openarmature.embedding.dimensions": 2,
    }
    assert ranked.attributes == {
        "gen_ai.system": "tei",
        "gen_ai.request.model": "r",
        "gen_ai.response.model": "r",
        "openarmature.rerank.document_count": 1,
        "openarmature.rerank.query_length": 2,
        "openarmature.rerank.top_k": 3,
        "openarmature.rerank.result_count": 1,
    }


def test_without_the_package_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ImportError, match="pip install opentelemetry-api"):
        OpenTelemetry()

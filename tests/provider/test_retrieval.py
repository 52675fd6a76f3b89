"""Embedding and reranking beyond the fixtures: checks of arguments, limits, and what other servers answer."""

from __future__ import annotations

import base64
import json
from array import array
from typing import Any

import httpx
import pytest
import respx
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import GatewayError, ProviderInvalidRequest, ProviderInvalidResponse
from gateway.provider.retrieval import (
    CohereEmbedding,
    CohereRerank,
    EmbeddingRuntimeConfig,
    GatewayRerank,
    JinaEmbedding,
    JinaRerank,
    OpenAIEmbedding,
    RerankRuntimeConfig,
    TEIEmbedding,
    TEIRerank,
)

from .doubles import SERVER

EMBEDDERS: list[Any] = [OpenAIEmbedding, JinaEmbedding, CohereEmbedding, TEIEmbedding]
RERANKERS: list[Any] = [GatewayRerank, JinaRerank, CohereRerank, TEIRerank]


def built(kind: Any, answer: Any, **options: Any) -> tuple[Any, respx.Route]:
    """A provider whose server answers every request the same (`answer` may be a function), and its route."""
    routes = respx.MockRouter(base_url=SERVER)
    route = routes.route(method="POST")
    if callable(answer):
        route.mock(side_effect=answer)
    else:
        route.mock(return_value=answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer))
    client = httpx.AsyncClient(transport=httpx.MockTransport(routes.async_handler))
    return kind(SERVER, "m", http_client=client, **options), route


def lengths(request: httpx.Request) -> httpx.Response:
    """A server of any kind: embeds a text as its length, scores a document by its length."""
    body = json.loads(request.content)
    texts = next(body[name] for name in ("input", "inputs", "texts", "documents") if name in body)
    numbers = [len(text) for text in texts]
    path = request.url.path
    if path == "/v1/embeddings":
        data = [{"index": at, "embedding": [number, 1.5]} for at, number in enumerate(numbers)]
        return httpx.Response(200, json={"data": data[::-1], "usage": {"prompt_tokens": len(texts)}})
    if path == "/v2/embed":
        billed = {"billed_units": {"input_tokens": len(texts)}}
        return httpx.Response(200, json={"embeddings": {"float": [[n, 1.5] for n in numbers]}, "meta": billed})
    if path == "/embed":
        return httpx.Response(200, json=[[number, 1.5] for number in numbers])
    results = [{"index": at, "relevance_score": number} for at, number in enumerate(numbers)]
    if path == "/rerank":
        return httpx.Response(200, json=[{"index": r["index"], "score": r["relevance_score"]} for r in results])
    best = sorted(results, key=lambda r: -r["relevance_score"])[: body.get("top_n")]
    return httpx.Response(200, json={"results": best})


@pytest.mark.parametrize("kind", EMBEDDERS)
@given(texts=st.lists(st.text("ab", max_size=9), min_size=1, max_size=200))
async def test_every_text_gets_its_vector(kind: Any, texts: list[str]) -> None:
    provider, route = built(kind, lengths)
    response = await provider.embed(texts)
    assert response.vectors == tuple((len(text), 1.5) for text in texts)
    assert response.dimensions == 2
    maximum = provider.chunk_size or len(texts)
    assert route.call_count == -(-len(texts) // maximum)
    assert (response.usage is None) == (kind is TEIEmbedding)


@pytest.mark.parametrize("kind", RERANKERS)
@given(texts=st.lists(st.text("ab", max_size=9), min_size=1, max_size=80), top_k=st.none() | st.integers(1, 90))
async def test_the_best_documents_come_first(kind: Any, texts: list[str], top_k: int | None) -> None:
    provider, _ = built(kind, lengths)
    results = (await provider.rerank("q", texts, top_k=top_k)).results
    assert [r.relevance_score for r in results] == sorted(map(len, texts), reverse=True)[:top_k]
    assert all(len(texts[r.index]) == r.relevance_score for r in results)


@given(
    st.lists(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3), min_size=1)
)
async def test_base64_is_read_exactly(vectors: list[list[float]]) -> None:
    data = [
        {"index": at, "embedding": base64.b64encode(array("f", vector).tobytes()).decode()}
        for at, vector in enumerate(vectors)
    ]
    provider, _ = built(OpenAIEmbedding, {"data": data})
    assert [list(v) for v in (await provider.embed(["x"] * len(vectors))).vectors] == vectors


@pytest.mark.parametrize("kind", EMBEDDERS)
@pytest.mark.parametrize(
    ("input", "config", "param"),
    [
        pytest.param([], None, "input", id="no text"),
        pytest.param("text", None, "input", id="a bare text"),
        pytest.param([1], None, "input[0]", id="a number"),
        pytest.param(["a"], EmbeddingRuntimeConfig(dimensions=0), "config.dimensions", id="no dimensions"),
        pytest.param(["a"], EmbeddingRuntimeConfig(dimensions=True), "config.dimensions", id="true dimensions"),
        pytest.param(["a"], EmbeddingRuntimeConfig(input_type=1), "config.input_type", id="a numbered type"),  # type: ignore[arg-type]
        pytest.param(["a"], EmbeddingRuntimeConfig(extra=[]), "config.extra", id="extra that is no mapping"),  # type: ignore[arg-type]
        pytest.param(["a"], {"dimensions": 1}, "config", id="config that is none"),
    ],
)  # fmt: skip
async def test_a_call_is_checked_before_it_is_sent(kind: Any, input: Any, config: Any, param: str) -> None:
    provider, route = built(kind, lengths)
    with pytest.raises(ProviderInvalidRequest) as caught:
        await provider.embed(input, config=config)
    assert caught.value.param == param
    assert not route.called


@pytest.mark.parametrize("kind", RERANKERS)
@pytest.mark.parametrize(
    ("call", "param"),
    [
        pytest.param({"query": ""}, "query", id="no query"),
        pytest.param({"documents": []}, "documents", id="no document"),
        pytest.param({"documents": "text"}, "documents", id="a bare text"),
        pytest.param({"top_k": 0}, "top_k", id="no result"),
        pytest.param({"config": 1}, "config", id="config that is none"),
        pytest.param({"config": RerankRuntimeConfig(return_documents=1)}, "config.return_documents", id="a number"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
async def test_a_rerank_is_checked_before_it_is_sent(kind: Any, call: dict[str, Any], param: str) -> None:
    provider, route = built(kind, lengths)
    with pytest.raises(ProviderInvalidRequest) as caught:
        await provider.rerank(**{"query": "q", "documents": ["a"]} | call)
    assert caught.value.param == param
    assert not route.called


@pytest.mark.parametrize(
    ("kind", "input_type"),
    [(JinaEmbedding, "clustering"), (CohereEmbedding, "image")],
)
async def test_an_unknown_purpose_is_refused(kind: Any, input_type: str) -> None:
    provider, route = built(kind, lengths)
    with pytest.raises(ProviderInvalidRequest, match=input_type):
        await provider.embed(["a"], config=EmbeddingRuntimeConfig(input_type=input_type))
    assert not route.called


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({}, {"inputs": ["a"]}),
        ({"prompt_names": {"query": "q"}}, {"inputs": ["a"], "prompt_name": "q"}),
        ({"query_prefix": "query: "}, {"inputs": ["query: a"]}),
        ({"prompt_names": {"document": "d"}}, None),
    ],
)
async def test_how_tei_tells_queries_from_documents(options: dict[str, Any], sent: Any) -> None:
    provider, route = built(TEIEmbedding, lengths, **options)
    config = EmbeddingRuntimeConfig(input_type="query")
    if sent is None:
        with pytest.raises(ProviderInvalidRequest, match="no prompt"):
            await provider.embed(["a"], config=config)
    else:
        await provider.embed(["a"], config=config)
        assert json.loads(route.calls.last.request.content) == sent


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        pytest.param(OpenAIEmbedding, [], id="openai: array"),
        pytest.param(OpenAIEmbedding, {"data": [1]}, id="openai: a number"),
        pytest.param(OpenAIEmbedding, {"data": [{"index": 1, "embedding": [1]}]}, id="openai: another text's"),
        pytest.param(OpenAIEmbedding, {"data": [{"index": "0", "embedding": [1]}]}, id="openai: index as text"),
        pytest.param(OpenAIEmbedding, {"data": [{"embedding": []}]}, id="openai: empty"),
        pytest.param(OpenAIEmbedding, {"data": [{"embedding": [True]}]}, id="openai: true"),
        pytest.param(OpenAIEmbedding, {"data": [{"embedding": "%%%"}]}, id="openai: no base64"),
        pytest.param(JinaEmbedding, {"data": []}, id="jina: too few"),
        pytest.param(CohereEmbedding, {"embeddings": {"int8": [[1]]}}, id="cohere: no floats"),
        pytest.param(CohereEmbedding, {"embeddings": [[1]]}, id="cohere: version 1"),
        pytest.param(TEIEmbedding, {"embeddings": [[1]]}, id="tei: an object"),
    ],
)
async def test_a_malformed_answer_is_refused(kind: Any, answer: Any) -> None:
    provider, _ = built(kind, answer)
    with pytest.raises(ProviderInvalidResponse):
        await provider.embed(["a"])


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param([], id="array"),
        pytest.param({"results": [1]}, id="a number"),
        pytest.param({"results": [{"index": 0}]}, id="no score"),
        pytest.param({"results": [{"index": 0, "relevance_score": "1"}]}, id="score as text"),
        pytest.param({"results": [{"index": 0, "relevance_score": True}]}, id="score true"),
        pytest.param({"results": [{"index": -1, "relevance_score": 1}]}, id="index below 0"),
        pytest.param({"results": [{"index": True, "relevance_score": 1}]}, id="index true"),
    ],
)
async def test_malformed_results_are_refused(answer: Any) -> None:
    provider, _ = built(GatewayRerank, answer)
    with pytest.raises(ProviderInvalidResponse):
        await provider.rerank("q", ["a", "b"])


@pytest.mark.parametrize(
    ("status", "body", "category"),
    [
        (401, {"message": "invalid api token"}, "provider_authentication"),
        (404, {"message": "model 'm' not found, make sure the correct model ID was used"}, "provider_invalid_model"),
        (422, {"detail": "input too long"}, "provider_invalid_request"),
        (429, {"detail": "slow down"}, "provider_rate_limit"),
        (500, {"error": "cuda", "error_type": "Backend"}, "provider_unavailable"),
        (503, {"error": "Model is overloaded", "error_type": "Overloaded"}, "provider_unavailable"),
    ],
)
async def test_refusals(status: int, body: dict[str, Any], category: str) -> None:
    provider, _ = built(CohereRerank, httpx.Response(status, json=body, headers={"retry-after": "3"}))
    with pytest.raises(GatewayError, match=next(iter(body.values()))) as caught:
        await provider.rerank("q", ["a"])
    assert (caught.value.category, caught.value.retry_after) == (category, 3.0)


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (OpenAIEmbedding, "/v1/models"),
        (GatewayRerank, "/v1/models"),
        (CohereEmbedding, "/v1/models/m"),
        (CohereRerank, "/v1/models/m"),
        (TEIEmbedding, "/health"),
        (TEIRerank, "/health"),
        (JinaEmbedding, None),
        (JinaRerank, None),
    ],
)
async def test_ready(kind: Any, path: str | None) -> None:
    routes = respx.MockRouter(base_url=SERVER)
    if path is not None:
        route = routes.get(path).mock(return_value=httpx.Response(200, json={"data": [{"id": "m"}]}))
    client = httpx.AsyncClient(transport=httpx.MockTransport(routes.async_handler))
    provider = kind(SERVER, "m", http_client=client)
    await provider.ready()
    if path is not None:
        route.mock(return_value=httpx.Response(503, json={"error": "starting"}))
        with pytest.raises(GatewayError) as caught:
            await provider.ready()
        assert caught.value.transient


@pytest.mark.parametrize("kind", [OpenAIEmbedding, TEIEmbedding, TEIRerank])
def test_a_chunk_holds_something(kind: Any) -> None:
    with pytest.raises(ValueError, match="chunk_size"):
        kind(SERVER, "m", chunk_size=0)


def floats(request: httpx.Request) -> httpx.Response:
    """As OpenAI answers: numbers, or base64 where it is asked for."""
    body = json.loads(request.content)
    vector: list[float] | str = [0.5, -1.5]
    if body["encoding_format"] == "base64":
        vector = base64.b64encode(array("f", vector).tobytes()).decode()
    return httpx.Response(200, json={"data": [{"index": 0, "embedding": vector}]})


@pytest.mark.parametrize(("extra", "kind"), [({}, str), ({"encoding_format": "float"}, list)])
async def test_vectors_come_in_few_bytes_unless_the_call_says_otherwise(extra: dict[str, str], kind: type) -> None:
    provider, _ = built(OpenAIEmbedding, floats)
    response = await provider.embed(["a"], config=EmbeddingRuntimeConfig(extra=extra))
    assert response.vectors == ((0.5, -1.5),)
    assert isinstance(response.raw["data"][0]["embedding"], kind)


@pytest.mark.parametrize("kind", RERANKERS)
async def test_a_query_that_is_no_text_of_unicode_is_refused(kind: Any) -> None:
    provider, _ = built(kind, lengths)
    with pytest.raises(ProviderInvalidRequest):
        await provider.rerank("\ud83d", ["a"])

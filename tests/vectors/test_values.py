"""Requests and answers of /v1/embeddings and /v1/rerank."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest

from gateway.errors import ProviderInvalidRequest, ProviderInvalidResponse
from gateway.features.vectors.wire.embeddings import (
    CreateEmbedding,
    CreateRerank,
    Scores,
    Vectors,
    cosine,
    embedding_list,
    rerank_list,
    shortened,
)

Json = dict[str, Any]


def encoded(value: object) -> bytes:
    return json.dumps(value).encode()


def raw(fields: dict[str, Any]) -> Json:
    return {name: json.loads(bytes(value)) for name, value in fields.items()}


@pytest.mark.parametrize("given", ["a", ["a", "b"], [1, 2, 3], [[1, 2], [3]], ["a"] * 2048, [7] * 5000])
def test_inputs_that_are_embedded(given: object) -> None:
    asked = CreateEmbedding.parse(encoded({"input": given, "encoding_format": "base64", "dimensions": 1}))
    assert raw(asked.fields) == {"input": given, "encoding_format": "float"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": [[1]] * 2049}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [[1], []]}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
    ],
)
def test_inputs_that_are_not(fields: Json, param: str) -> None:
    with pytest.raises(ProviderInvalidRequest) as caught:
        CreateEmbedding.parse(encoded(fields))
    assert caught.value.param == param


VECTORS = Vectors.parse(
    encoded(
        {
            "data": [{"index": 1, "embedding": [0.0, 2.0]}, {"index": 0, "embedding": [3.0, 4.0]}],
            "usage": {"prompt_tokens": 5, "total_tokens": 6},
        }
    ),
    2,
)


def test_vectors_come_in_the_order_of_their_texts() -> None:
    found = embedding_list(CreateEmbedding(["a", "b"]), VECTORS, "m")
    assert found["data"] == [
        {"object": "embedding", "index": 0, "embedding": [3.0, 4.0]},
        {"object": "embedding", "index": 1, "embedding": [0.0, 2.0]},
    ]
    assert (found["object"], found["model"]) == ("list", "m")
    assert (found["usage"].prompt_tokens, found["usage"].total_tokens) == (5, 6)


@pytest.mark.parametrize(
    "usage", ["null", '{"prompt_tokens": 1e999, "total_tokens": -1e999}', '"x"', '{"prompt_tokens": null}']
)
def test_counts_that_are_none_spoil_no_vectors(usage: str) -> None:
    found = Vectors.parse(b'{"data": [{"embedding": [1.0]}], "usage": %b}' % usage.encode(), 1)
    assert (found.data[0].embedding, found.usage.prompt_tokens, found.usage.total_tokens) == ([1.0], 0, 0)
    ranked = Scores.parse(b'{"results": [{"index": 0, "relevance_score": 1.0}], "usage": %b}' % usage.encode())
    assert (ranked.results[0].index, ranked.usage.total_tokens) == (0, 0)


def test_vectors_in_base64_are_little_endian_floats() -> None:
    found = embedding_list(CreateEmbedding("a", encoding_format="base64"), VECTORS, "m")
    assert struct.unpack("<2f", base64.b64decode(found["data"][0]["embedding"])) == (3.0, 4.0)


@pytest.mark.parametrize(
    ("vector", "dimensions", "expected"),
    [
        ([3.0, 4.0], None, [3.0, 4.0]),
        ([3.0, 4.0], 2, [3.0, 4.0]),
        ([3.0, 4.0, 9.0], 2, [0.6, 0.8]),
        ([0.0, 0.0, 9.0], 2, [0.0, 0.0]),
    ],
)
def test_a_shortened_vector_has_length_1(vector: list[float], dimensions: int | None, expected: list[float]) -> None:
    assert shortened(vector, dimensions) == pytest.approx(expected)
    asked = CreateEmbedding("a", dimensions=dimensions)
    (one,) = embedding_list(asked, Vectors.parse(encoded({"data": [{"embedding": vector}]}), 1), "m")["data"]
    assert one["embedding"] == pytest.approx(expected)


def test_a_vector_gets_no_longer() -> None:
    with pytest.raises(ProviderInvalidRequest, match="have 2 numbers: ask for 1 to 2") as caught:
        shortened([3.0, 4.0], 3)
    assert caught.value.param == "dimensions"


def test_similarity() -> None:
    assert cosine([1, 0], [0, 2]) == 0
    assert cosine([1, 2], [2, 4]) == pytest.approx(1)
    assert cosine([1, 0], [-3, 0]) == pytest.approx(-1)
    assert cosine([0, 0], [1, 2]) == 0


DOCUMENTS: list[Any] = ["a", {"text": "b"}, "c"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"query": ""}, "query"),
        ({"documents": []}, "documents"),
        ({"documents": ["a", ""]}, "documents"),
        ({"documents": [{"title": "x"}]}, "documents"),
        ({"top_n": 0}, "top_n"),
    ],
)
def test_documents_that_are_not_ranked(fields: Json, param: str) -> None:
    with pytest.raises(ProviderInvalidRequest) as caught:
        CreateRerank.parse(encoded({"query": "q", "documents": DOCUMENTS, **fields}))
    assert caught.value.param == param


def scores(*found: tuple[int, float]) -> Scores:
    results = [{"index": index, "relevance_score": score} for index, score in found]
    return Scores.parse(encoded({"results": results, "usage": {"prompt_tokens": 1, "total_tokens": 1}}))


def ranked(*found: tuple[int, float], **fields: Any) -> list[Json]:
    asked = CreateRerank.parse(encoded({"query": "q", "documents": DOCUMENTS, **fields}))
    assert raw(asked.fields) == {"query": "q", "documents": ["a", "b", "c"]}
    answer = rerank_list(asked, scores(*found), "m")
    assert answer.keys() == {"object", "model", "results", "usage"}
    results: list[Json] = answer["results"]
    return results


def test_the_best_document_comes_first_and_equal_ones_in_their_order() -> None:
    found = ranked((2, 0.5), (0, 0.5), (1, 0.9))
    assert [(one["index"], one["relevance_score"]) for one in found] == [(1, 0.9), (0, 0.5), (2, 0.5)]
    assert "document" not in found[0]
    assert [one["index"] for one in ranked((2, 0.5), (0, 0.5), (1, 0.9), top_n=1)] == [1]


def test_documents_are_returned_on_request() -> None:
    found = ranked((0, 0.1), (1, 0.9), return_documents=True)
    assert [one["document"] for one in found] == [{"text": "b"}, {"text": "a"}]


@pytest.mark.parametrize("index", [-1, 3])
def test_a_document_that_the_request_does_not_contain(index: int) -> None:
    with pytest.raises(ProviderInvalidResponse):
        ranked((index, 0.5))


def test_an_engine_that_only_embeds_ranks_by_similarity() -> None:
    vectors = Vectors.parse(encoded({"data": [{"index": at, "embedding": [at, 1]} for at in range(3)]}), 3)
    found = Scores.of(vectors)
    assert [one.index for one in found.results] == [0, 1]
    assert found.results[0].relevance_score > found.results[1].relevance_score


@pytest.mark.parametrize("data", [b"<html>", b"{}", b'{"data": [{"embedding": "x"}], "results": [{"index": "x"}]}'])
def test_an_engine_that_answers_something_else(data: bytes) -> None:
    for read in (lambda: Vectors.parse(data, 1), lambda: Scores.parse(data)):
        with pytest.raises(ProviderInvalidResponse, match="malformed"):
            read()


@pytest.mark.parametrize(
    ("given", "count"), [("a", 1), (["a"], 1), (["a", "b", "c"], 3), ([1, 2, 3], 1), ([[1, 2], [3]], 2)]
)
def test_an_engine_that_gives_too_few_vectors(given: Any, count: int) -> None:
    assert CreateEmbedding(given).count == count
    for others in (0, count + 1):
        with pytest.raises(ProviderInvalidResponse, match=f"{others} vectors, not {count}"):
            Vectors.parse(encoded({"data": [{"embedding": [1]}] * others}), count)

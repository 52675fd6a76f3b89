"""`/v1/embeddings` and `/v1/rerank`: validates requests, writes vectors in the requested encoding."""

from __future__ import annotations

import base64
import math
import sys
from array import array
from collections.abc import Callable, Sequence
from operator import mul
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Raw, Struct

from gateway.errors import ProviderInvalidRequest, ProviderInvalidResponse
from gateway.wire import body
from gateway.wire.body import Name
from gateway.wire.chat import encode
from gateway.wire.limits import Tier
from gateway.wire.usage import read_usage, whole_number
from gateway.wire.values import MAX_TOKENS

T = TypeVar("T")

MAX_INPUTS = 2048
"""OpenAI's limit."""


class CreateEmbedding(Struct):
    input: str | list[str | int | list[int]]
    model: Name | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None
    service_tier: str | None = None

    @classmethod
    def parse(cls, data: bytes) -> CreateEmbedding:
        """Raises ProviderInvalidRequest."""
        return body.read(_embedding_decoder, data, MAX_TOKENS).checked()

    def checked(self) -> CreateEmbedding:
        """This request. Raises ProviderInvalidRequest for what no type says."""
        given = self.input
        if not given:
            raise ProviderInvalidRequest("input: at least one text is required", param="input")
        if isinstance(given, list):
            if len(given) > MAX_INPUTS and not isinstance(given[0], int):
                raise ProviderInvalidRequest(f"input: at most {MAX_INPUTS} texts at a time", param="input")
            if len({isinstance(one, int) for one in given}) > 1:
                raise ProviderInvalidRequest("input: texts or the tokens of one text, not both", param="input")
            if any(one == "" or one == [] for one in given):
                raise ProviderInvalidRequest("input: texts must not be empty", param="input")
        if self.dimensions is not None and self.dimensions < 1:
            raise ProviderInvalidRequest("dimensions: must be at least 1", param="dimensions")
        return self

    @property
    def count(self) -> int:
        """How many vectors it asks for: numbers are the tokens of one text."""
        return 1 if isinstance(self.input, str) or isinstance(self.input[0], int) else len(self.input)

    @property
    def fields(self) -> dict[str, Raw]:
        """The fields for the engine. Always asks for float numbers, which every engine supports."""
        return {"input": Raw(encode(self.input)), "encoding_format": Raw(b'"float"'), **_tier(self.service_tier)}


class CreateRerank(Struct):
    query: str
    documents: list[str | dict[str, Any]]
    model: Name | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    service_tier: str | None = None

    @classmethod
    def parse(cls, data: bytes) -> CreateRerank:
        """Raises ProviderInvalidRequest."""
        request = body.read(_rerank_decoder, data)
        for name in ("query", "documents"):
            if not getattr(request, name):
                raise ProviderInvalidRequest(f"{name}: must not be empty", param=name)
        if not all(request.texts):
            raise ProviderInvalidRequest("documents: each document needs a text", param="documents")
        if request.top_n is not None and request.top_n < 1:
            raise ProviderInvalidRequest("top_n: must be at least 1", param="top_n")
        return request

    @property
    def texts(self) -> list[str]:
        return [one if isinstance(one, str) else str(one.get("text") or "") for one in self.documents]

    @property
    def fields(self) -> dict[str, Raw]:
        documents = Raw(encode(self.texts))
        return {"query": Raw(encode(self.query)), "documents": documents, **_tier(self.service_tier)}


def _tier(written: str | None) -> dict[str, Raw]:
    return {} if written is None else {"service_tier": Raw(encode(written))}


class EmbeddingUsage(Struct):
    prompt_tokens: int = 0
    total_tokens: int = 0

    @classmethod
    def of(cls, written: Raw) -> EmbeddingUsage:
        """What can be read of an engine's counts; its vectors and scores are sound whatever it counts."""
        usage = read_usage(bytes(written)) or {}
        return cls(*(whole_number(usage.get(name)) for name in cls.__struct_fields__))


class _Embedding(Struct):
    embedding: list[float]
    index: int = 0


class Vectors(Struct):
    """An engine's answer."""

    data: list[_Embedding]
    usage: EmbeddingUsage = msgspec.field(default_factory=EmbeddingUsage)

    @classmethod
    def parse(cls, data: bytes, count: int) -> Vectors:
        """Sorts the vectors in the order of the input, which asks for `count`. Raises ProviderInvalidResponse."""
        found = _read(_decode_vectors, data)
        if len(found.data) != count:
            raise ProviderInvalidResponse(f"the engine gave {len(found.data)} vectors, not {count}")
        return cls(sorted(found.data, key=lambda one: one.index), EmbeddingUsage.of(found.usage))


class _Score(Struct):
    index: int
    relevance_score: float


class Scores(Struct):
    """An engine's answer."""

    results: list[_Score]
    usage: EmbeddingUsage = msgspec.field(default_factory=EmbeddingUsage)

    @classmethod
    def parse(cls, data: bytes) -> Scores:
        """Raises ProviderInvalidResponse."""
        found = _read(_decode_scores, data)
        return cls(found.results, EmbeddingUsage.of(found.usage))

    @classmethod
    def of(cls, vectors: Vectors) -> Scores:
        """Scores each text by its similarity to the first one, the query."""
        query, *others = vectors.data
        scores = [_Score(at, cosine(query.embedding, one.embedding)) for at, one in enumerate(others)]
        return cls(scores, vectors.usage)


_embedding_decoder = msgspec.json.Decoder(CreateEmbedding)
_rerank_decoder = msgspec.json.Decoder(CreateRerank)


class _WrittenVectors(Struct):
    data: list[_Embedding]
    usage: Raw = Raw(b"null")


class _WrittenScores(Struct):
    results: list[_Score]
    usage: Raw = Raw(b"null")


_decode_vectors = msgspec.json.Decoder(_WrittenVectors).decode
_decode_scores = msgspec.json.Decoder(_WrittenScores).decode


def embedding_list(request: CreateEmbedding, vectors: Vectors, model: str, tier: Tier | None = None) -> dict[str, Any]:
    """The answer in OpenAI's format. tier: the one that the request got, if the answer shall name it.

    Raises ProviderInvalidRequest for `dimensions` that the vectors don't have.
    """
    data = [
        {"object": "embedding", "index": at, "embedding": _encoded(one.embedding, request)}
        for at, one in enumerate(vectors.data)
    ]
    return {"object": "list", "data": data, "model": model, "usage": vectors.usage, **named(tier)}


def shortened(vector: list[float], dimensions: int | None) -> list[float]:
    """Truncates a vector and rescales it to length 1. Only for models trained for it (Matryoshka embeddings).

    Raises ProviderInvalidRequest if the vector is shorter.
    """
    if dimensions is None or dimensions == len(vector):
        return vector
    if dimensions > len(vector):
        message = (
            f"dimensions: the model's vectors have {len(vector)} numbers: ask for 1 to {len(vector)}, or leave it out"
        )
        raise ProviderInvalidRequest(message, param="dimensions")
    head = vector[:dimensions]
    length = math.hypot(*head)
    return [number / length for number in head] if length else head


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    lengths = math.hypot(*one) * math.hypot(*other)
    return sum(map(mul, one, other)) / lengths if lengths else 0.0


def named(tier: Tier | None) -> dict[str, Tier]:
    """The field that names a service tier."""
    return {} if tier is None else {"service_tier": tier}


def rerank_list(request: CreateRerank, scores: Scores, model: str, tier: Tier | None = None) -> dict[str, Any]:
    """The answer in Jina's and Cohere's format, best first. tier: see `embedding_list`."""
    best = sorted(scores.results, key=lambda one: (-one.relevance_score, one.index))[: request.top_n]
    if any(not 0 <= one.index < len(request.documents) for one in best):
        raise ProviderInvalidResponse("the engine ranked a document that the request doesn't contain")
    results, texts = [], request.texts if request.return_documents else []
    for one in best:
        result: dict[str, Any] = {"index": one.index, "relevance_score": one.relevance_score}
        if request.return_documents:
            result["document"] = {"text": texts[one.index]}
        results.append(result)
    return {"object": "list", "model": model, "results": results, "usage": scores.usage, **named(tier)}


def _encoded(vector: list[float], request: CreateEmbedding) -> list[float] | str:
    vector = shortened(vector, request.dimensions)
    if request.encoding_format != "base64":
        return vector
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()


def _read(decode: Callable[[bytes], T], data: bytes) -> T:
    try:
        return decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProviderInvalidResponse(f"the engine's answer is malformed: {error}") from error

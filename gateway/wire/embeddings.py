"""`/v1/embeddings` and `/v1/rerank`: requests checked, vectors as they were asked for."""

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
from gateway.wire.chat import encode

T = TypeVar("T")

MOST_INPUTS = 2048
"""OpenAI's limit."""


class CreateEmbedding(Struct):
    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None

    @classmethod
    def parse(cls, data: bytes) -> CreateEmbedding:
        """Raises ProviderInvalidRequest."""
        request = body.read(_embedding_decoder, data)
        if not request.input:
            raise ProviderInvalidRequest("input: at least one text is needed", param="input")
        if isinstance(request.input, list):
            if len(request.input) > MOST_INPUTS and not isinstance(request.input[0], int):
                raise ProviderInvalidRequest(f"input: at most {MOST_INPUTS} texts at a time", param="input")
            if len({isinstance(one, int) for one in request.input}) > 1:
                raise ProviderInvalidRequest("input: texts or the tokens of one text, not both", param="input")
            if any(one == "" or one == [] for one in request.input):
                raise ProviderInvalidRequest("input: none of its texts may be empty", param="input")
        if request.dimensions is not None and request.dimensions < 1:
            raise ProviderInvalidRequest("dimensions: at least 1", param="dimensions")
        return request

    @property
    def fields(self) -> dict[str, Raw]:
        """What an engine is asked: numbers, which every one of them can give."""
        return {"input": Raw(encode(self.input)), "encoding_format": Raw(b'"float"')}


class CreateRerank(Struct):
    query: str
    documents: list[str | dict[str, Any]]
    model: str | None = None
    top_n: int | None = None
    return_documents: bool | None = None

    @classmethod
    def parse(cls, data: bytes) -> CreateRerank:
        """Raises ProviderInvalidRequest."""
        request = body.read(_rerank_decoder, data)
        for name in ("query", "documents"):
            if not getattr(request, name):
                raise ProviderInvalidRequest(f"{name}: it is empty", param=name)
        if not all(request.texts):
            raise ProviderInvalidRequest("documents: each needs a text", param="documents")
        if request.top_n is not None and request.top_n < 1:
            raise ProviderInvalidRequest("top_n: at least 1", param="top_n")
        return request

    @property
    def texts(self) -> list[str]:
        return [one if isinstance(one, str) else str(one.get("text") or "") for one in self.documents]

    @property
    def fields(self) -> dict[str, Raw]:
        return {"query": Raw(encode(self.query)), "documents": Raw(encode(self.texts))}


class Usage(Struct):
    prompt_tokens: int = 0
    total_tokens: int = 0


class _Embedding(Struct):
    embedding: list[float]
    index: int = 0


class Vectors(Struct):
    """An engine's answer."""

    data: list[_Embedding]
    usage: Usage = msgspec.field(default_factory=Usage)

    @classmethod
    def parse(cls, data: bytes) -> Vectors:
        """In the order of the input. Raises ProviderInvalidResponse."""
        vectors = _read(_decode_vectors, data)
        vectors.data.sort(key=lambda one: one.index)
        return vectors


class _Score(Struct):
    index: int
    relevance_score: float


class Scores(Struct):
    """An engine's answer."""

    results: list[_Score]
    usage: Usage = msgspec.field(default_factory=Usage)

    @classmethod
    def parse(cls, data: bytes) -> Scores:
        """Raises ProviderInvalidResponse."""
        return _read(_decode_scores, data)

    @classmethod
    def of(cls, vectors: Vectors) -> Scores:
        """The similarity of each text with the first one."""
        query, *others = vectors.data
        scores = [_Score(at, cosine(query.embedding, one.embedding)) for at, one in enumerate(others)]
        return cls(scores, vectors.usage)


_embedding_decoder = msgspec.json.Decoder(CreateEmbedding)
_rerank_decoder = msgspec.json.Decoder(CreateRerank)
_decode_vectors = msgspec.json.Decoder(Vectors).decode
_decode_scores = msgspec.json.Decoder(Scores).decode


def embedding_list(request: CreateEmbedding, vectors: Vectors, model: str) -> dict[str, Any]:
    """OpenAI's answer."""
    data = [
        {"object": "embedding", "index": at, "embedding": _written(one.embedding, request)}
        for at, one in enumerate(vectors.data)
    ]
    return {"object": "list", "data": data, "model": model, "usage": vectors.usage}


def shortened(vector: list[float], dimensions: int | None) -> list[float]:
    """The first numbers of a vector, at length 1 again. Of use with models that were trained for it."""
    if dimensions is None or dimensions >= len(vector):
        return vector
    kept = vector[:dimensions]
    length = math.hypot(*kept)
    return [number / length for number in kept] if length else kept


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    lengths = math.hypot(*one) * math.hypot(*other)
    return sum(map(mul, one, other)) / lengths if lengths else 0.0


def rerank_list(request: CreateRerank, scores: Scores, model: str) -> dict[str, Any]:
    """Jina's and Cohere's answer, the best first."""
    best = sorted(scores.results, key=lambda one: (-one.relevance_score, one.index))[: request.top_n]
    if any(not 0 <= one.index < len(request.documents) for one in best):
        raise ProviderInvalidResponse("the engine ranked a document that wasn't there")
    results = []
    for one in best:
        result: dict[str, Any] = {"index": one.index, "relevance_score": one.relevance_score}
        if request.return_documents:
            result["document"] = {"text": request.texts[one.index]}
        results.append(result)
    return {"object": "list", "model": model, "results": results, "usage": scores.usage}


def _written(vector: list[float], request: CreateEmbedding) -> list[float] | str:
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
    except msgspec.DecodeError as error:
        raise ProviderInvalidResponse(f"the engine's answer can't be read: {error}") from error

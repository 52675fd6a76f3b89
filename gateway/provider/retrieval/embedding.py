"""Embedding providers for OpenAI-compatible servers, TEI, Jina and Cohere (retrieval-provider §8)."""

from __future__ import annotations

import asyncio
import binascii
import sys
from abc import ABC, abstractmethod
from array import array
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from gateway.errors import ProviderInvalidResponse
from gateway.provider.mapping.call import merge_extra
from gateway.provider.observe import Observer
from gateway.provider.retrieval.base import (
    Retriever,
    check_positive,
    check_texts,
    model_name,
    refuse,
    response_id,
    size,
    tokens,
)
from gateway.provider.retrieval.contract import EmbeddingResponse, EmbeddingRuntimeConfig, EmbeddingUsage

if TYPE_CHECKING:
    import httpx

Vector = tuple[float, ...]


class _Embedding(Retriever, ABC):
    """See `Retriever`."""

    path: ClassVar[str]

    async def embed(self, input: Sequence[str], *, config: EmbeddingRuntimeConfig | None = None) -> EmbeddingResponse:
        """See `EmbeddingProvider.embed`."""
        config = EmbeddingRuntimeConfig() if config is None else config
        with self._watched("embed", _parameters(config), {"input_count": size(input)}) as outcome:
            outcome.append(response := await self._embed(input, config))
        return response

    async def _embed(self, input: Sequence[str], config: EmbeddingRuntimeConfig) -> EmbeddingResponse:
        texts = check_texts(input, "input")
        _check(config)
        maximum = self.chunk_size or len(texts)
        chunks = [texts[start : start + maximum] for start in range(0, len(texts), maximum)]
        bodies = [self.fields(chunk, config) for chunk in chunks]  # all are checked before the first is sent
        raws = [await self._post(self.path, body) for body in bodies]
        return await asyncio.to_thread(self._response, chunks, raws)

    def _response(self, chunks: Sequence[Sequence[str]], raws: list[Any]) -> EmbeddingResponse:
        vectors: list[Vector] = []
        for chunk, raw in zip(chunks, raws, strict=True):
            found = [_vector(entry) for entry in self.entries(raw)]
            if len(found) != len(chunk):
                raise ProviderInvalidResponse(f"the server sent {len(found)} vectors for {len(chunk)} texts")
            vectors += found
        if len(lengths := {len(vector) for vector in vectors}) > 1:
            raise ProviderInvalidResponse(f"the server sent vectors of {len(lengths)} lengths: {sorted(lengths)}")
        counts = [tokens(raw) for raw in raws]
        known = [number for number in counts if number is not None]
        return EmbeddingResponse(
            vectors=tuple(vectors),
            model=model_name(raws[0], self.model),
            usage=EmbeddingUsage(sum(known)) if len(known) == len(counts) else None,
            response_id=response_id(raws[0]),
            dimensions=lengths.pop(),
            raw=raws[0] if len(raws) == 1 else raws,
        )

    @abstractmethod
    def fields(self, texts: Sequence[str], config: EmbeddingRuntimeConfig) -> dict[str, Any]:
        """The request body. Raises ProviderInvalidRequest for what the server can't be asked."""

    def entries(self, raw: Any) -> list[Any]:
        """The encoded vectors of an answer, in the order of the texts: here OpenAI's `data`."""
        data = raw.get("data") if isinstance(raw, dict) else None
        if not isinstance(data, list) or not all(isinstance(entry, dict) for entry in data):
            raise ProviderInvalidResponse("the answer has no data array of objects")
        indices = [entry.get("index", position) for position, entry in enumerate(data)]
        if any(type(index) is not int for index in indices) or sorted(indices) != list(range(len(data))):
            raise ProviderInvalidResponse("the indices of the vectors don't number the texts")
        ordered: list[Any] = [None] * len(data)
        for index, entry in zip(indices, data, strict=True):
            ordered[index] = entry.get("embedding")
        return ordered


class _Prefixed(_Embedding):
    """Puts a prefix of the caller's before each text, for models that tell queries from documents by one."""

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        http_client: httpx.AsyncClient | None = None,
        observer: Observer | None = None,
        *,
        query_prefix: str = "",
        document_prefix: str = "",
        chunk_size: int | None = None,
    ) -> None:
        super().__init__(base_url, model, api_key, http_client, observer, chunk_size=chunk_size)
        self._prefixes = {"query": query_prefix, "document": document_prefix}

    def _prefixed(self, texts: Sequence[str], input_type: str | None) -> list[str]:
        prefix = self._prefixes.get(input_type or "", "")
        return [prefix + text for text in texts]


class OpenAIEmbedding(_Prefixed):
    """`POST /v1/embeddings` of OpenAI, ctxgate, vLLM and others (§8.3).

    It asks for vectors as base64; `extra={"encoding_format": "float"}` is for servers that refuse that.
    query_prefix, document_prefix: put before each text by the config's input_type, which this API doesn't know.
    chunk_size: the most texts in a request; None: 2048.
    """

    system = "openai"
    version = "/v1"
    path = "/embeddings"
    chunk_size = 2048

    async def ready(self) -> None:
        """Looks the model up in `GET /models`, as `OpenAIProvider.ready` does."""
        await self._server.ready(self.model)

    def fields(self, texts: Sequence[str], config: EmbeddingRuntimeConfig) -> dict[str, Any]:
        fields: dict[str, Any] = {"model": self.model, "input": self._prefixed(texts, config.input_type)}
        if "encoding_format" not in config.extra:
            fields["encoding_format"] = "base64"  # a quarter of the bytes that numbers take
        if config.dimensions is not None:
            fields["dimensions"] = config.dimensions
        merge_extra(fields, config.extra)
        return fields


class TEIEmbedding(_Prefixed):
    """`POST /embed` of Hugging Face's Text Embeddings Inference (§8.1).

    prompt_names: the server's prompt for each input_type: `{"query": "query", "document": "passage"}`.
    query_prefix, document_prefix: for models without prompts of their own.
    chunk_size: the server's `--max-client-batch-size`; None: 32.
    """

    system = "tei"
    path = "/embed"
    chunk_size = 32

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        http_client: httpx.AsyncClient | None = None,
        observer: Observer | None = None,
        *,
        prompt_names: Mapping[str, str] | None = None,
        query_prefix: str = "",
        document_prefix: str = "",
        chunk_size: int | None = None,
    ) -> None:
        super().__init__(
            base_url,
            model,
            api_key,
            http_client,
            observer,
            query_prefix=query_prefix,
            document_prefix=document_prefix,
            chunk_size=chunk_size,
        )
        self._prompt_names = dict(prompt_names or {})

    async def ready(self) -> None:
        """Asks for the server's health; it has one model."""
        await self._server.healthy("/health")

    def fields(self, texts: Sequence[str], config: EmbeddingRuntimeConfig) -> dict[str, Any]:
        kind = config.input_type
        fields: dict[str, Any] = {}
        if kind is not None and kind in self._prompt_names:
            fields = {"inputs": list(texts), "prompt_name": self._prompt_names[kind]}
        elif kind is not None and self._prompt_names and not self._prefixes.get(kind):
            refuse("config.input_type", f"this provider has no prompt for {kind!r}")
        else:
            fields = {"inputs": self._prefixed(texts, kind)}
        if config.dimensions is not None:
            fields["dimensions"] = config.dimensions
        merge_extra(fields, config.extra, managed={"truncate": False})
        return fields

    def entries(self, raw: Any) -> list[Any]:
        if not isinstance(raw, list):
            raise ProviderInvalidResponse("the answer is not an array")
        return raw


class JinaEmbedding(_Embedding):
    """`POST /v1/embeddings` of Jina (§8.2). A text that is too long is an error, not cut."""

    system = "jina"
    version = "/v1"
    path = "/embeddings"
    _TASKS: ClassVar = {"query": "retrieval.query", "document": "retrieval.passage"}

    async def ready(self) -> None:
        """Returns: Jina has no request that costs nothing."""

    def fields(self, texts: Sequence[str], config: EmbeddingRuntimeConfig) -> dict[str, Any]:
        fields: dict[str, Any] = {"model": self.model, "input": list(texts), "truncate": False}
        if config.input_type is not None:
            fields["task"] = _known(self._TASKS, config.input_type)
        if config.dimensions is not None:
            fields["dimensions"] = config.dimensions
        merge_extra(fields, config.extra)
        return fields


class CohereEmbedding(_Embedding):
    """`POST /v2/embed` of Cohere (§8.4), up to 96 texts in a request. A text that is too long is an error, not cut."""

    system = "cohere"
    path = "/v2/embed"
    chunk_size = 96
    _TYPES: ClassVar = {
        "query": "search_query",
        "document": "search_document",
        "classification": "classification",
        "clustering": "clustering",
    }

    async def ready(self) -> None:
        """Asks for the model by its name."""
        await self._server.get(f"/v1/models/{quote(self.model, safe='')}")

    def fields(self, texts: Sequence[str], config: EmbeddingRuntimeConfig) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "model": self.model,
            "texts": list(texts),
            # Cohere requires it; most texts that are embedded are documents.
            "input_type": _known(self._TYPES, config.input_type or "document"),
            "embedding_types": ["float"],
            "truncate": "NONE",
        }
        if config.dimensions is not None:
            fields["output_dimension"] = config.dimensions
        merge_extra(fields, config.extra, lists=frozenset({"embedding_types"}))
        return fields

    def entries(self, raw: Any) -> list[Any]:
        embeddings = raw.get("embeddings") if isinstance(raw, dict) else None
        floats = embeddings.get("float") if isinstance(embeddings, dict) else None
        if not isinstance(floats, list):
            raise ProviderInvalidResponse("the answer has no embeddings.float array")
        return floats


def _parameters(config: object) -> dict[str, Any]:
    values = {name: getattr(config, name, None) for name in ("dimensions", "input_type")}
    return {name: value for name, value in values.items() if value is not None}


def _check(config: object) -> None:
    if not isinstance(config, EmbeddingRuntimeConfig):
        refuse("config", f"must be an EmbeddingRuntimeConfig, not {type(config).__name__}")
    check_positive(config.dimensions, "config.dimensions")
    if config.input_type is not None and not isinstance(config.input_type, str):
        refuse("config.input_type", f"must be a text, not {type(config.input_type).__name__}")
    if not isinstance(config.extra, Mapping):
        refuse("config.extra", f"must be a mapping, not {type(config.extra).__name__}")


def _known(names: Mapping[str, str], input_type: str) -> str:
    if input_type not in names:
        refuse("config.input_type", f"must be one of {', '.join(names)}, not {input_type!r}")
    return names[input_type]


def _vector(entry: Any) -> Vector:
    """An array of numbers as it is, or base64 of little-endian 32-bit floats. Raises ProviderInvalidResponse."""
    if isinstance(entry, str):
        try:
            numbers = array("f", b64decode(entry, validate=True))
        except (binascii.Error, ValueError) as error:
            raise ProviderInvalidResponse(f"a vector is not base64 of 32-bit floats: {error}") from error
        if sys.byteorder == "big":
            numbers.byteswap()
        vector: Vector = tuple(numbers)
    elif isinstance(entry, list) and {int, float}.issuperset(map(type, entry)):
        vector = tuple(entry)
    else:
        raise ProviderInvalidResponse("a vector is neither an array of numbers nor base64")
    if not vector:
        raise ProviderInvalidResponse("a vector is empty")
    return vector

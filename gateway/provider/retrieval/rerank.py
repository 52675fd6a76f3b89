"""Rerank providers for ctxgate and its like, TEI, Jina and Cohere (retrieval-provider §8)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import quote

from gateway.errors import ProviderInvalidResponse
from gateway.provider.mapping.call import count, merge_extra
from gateway.provider.retrieval.base import (
    Retriever,
    billed,
    check_positive,
    check_texts,
    model_name,
    refuse,
    response_id,
    size,
    tokens,
)
from gateway.provider.retrieval.contract import RerankResponse, RerankRuntimeConfig, RerankUsage, ScoredDocument


class _Rerank(Retriever, ABC):
    """See `Retriever`."""

    path: ClassVar[str]
    limits: ClassVar[bool] = True
    """Whether the server itself keeps to top_k."""

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_k: int | None = None,
        config: RerankRuntimeConfig | None = None,
    ) -> RerankResponse:
        """See `RerankProvider.rerank`."""
        config = RerankRuntimeConfig() if config is None else config
        parameters = {} if top_k is None else {"top_k": top_k}
        counts = {"document_count": size(documents), "query_length": len(str(query).encode("utf-8", "surrogatepass"))}
        with self._watched("rerank", parameters, counts) as outcome:
            outcome.append(response := await self._rerank(query, documents, top_k, config))
        return response

    async def _rerank(
        self, query: str, documents: Sequence[str], top_k: int | None, config: RerankRuntimeConfig
    ) -> RerankResponse:
        if not isinstance(query, str) or not query:
            refuse("query", "must be a text, not empty")
        texts = check_texts(documents, "documents")
        check_positive(top_k, "top_k")
        _check(config)
        maximum = self.chunk_size or len(texts)
        chunks = [texts[start : start + maximum] for start in range(0, len(texts), maximum)]
        bodies = [self.fields(query, chunk, top_k, config) for chunk in chunks]  # all are checked before one is sent
        raws = [await self._post(self.path, body) for body in bodies]
        results: list[ScoredDocument] = []
        for number, (chunk, raw) in enumerate(zip(chunks, raws, strict=True)):
            results += _results(self.entries(raw), number * maximum, len(chunk))
        if top_k is not None and self.limits and len(results) > top_k:
            raise ProviderInvalidResponse(f"the server sent {len(results)} results, {top_k} were asked for")
        results.sort(key=lambda result: -result.relevance_score)
        return RerankResponse(
            results=tuple(results[:top_k]),
            model=model_name(raws[0], self.model),
            usage=_usage(raws),
            response_id=response_id(raws[0]),
            raw=raws[0] if len(raws) == 1 else raws,
        )

    @abstractmethod
    def fields(
        self, query: str, documents: Sequence[str], top_k: int | None, config: RerankRuntimeConfig
    ) -> dict[str, Any]:
        """The request body. Raises ProviderInvalidRequest for what the server can't be asked."""

    def entries(self, raw: Any) -> Any:
        """The results of an answer."""
        return raw.get("results") if isinstance(raw, dict) else None


class JinaRerank(_Rerank):
    """`POST /v1/rerank` of Jina (§8.2). A document that is too long is an error, not cut."""

    system = "jina"
    version = "/v1"
    path = "/rerank"
    _fixed: ClassVar[Mapping[str, Any]] = {"truncation": False}

    async def ready(self) -> None:
        """Returns: Jina has no request that costs nothing."""

    def fields(
        self, query: str, documents: Sequence[str], top_k: int | None, config: RerankRuntimeConfig
    ) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "model": self.model,
            "query": query,
            "documents": list(documents),
            "return_documents": config.return_documents,
            **self._fixed,
        }
        if top_k is not None:
            fields["top_n"] = top_k
        merge_extra(fields, config.extra)
        return fields


class GatewayRerank(JinaRerank):
    """`POST /v1/rerank` of ctxgate, llama-server and vLLM: Jina's API without its switch for long documents."""

    system = "ctxgate"
    _fixed: ClassVar[Mapping[str, Any]] = {}

    async def ready(self) -> None:
        """Looks the model up in `GET /models`, as `OpenAIProvider.ready` does."""
        await self._server.ready(self.model)


class CohereRerank(_Rerank):
    """`POST /v2/rerank` of Cohere (§8.4), which cuts long documents and never sends documents back."""

    system = "cohere"
    path = "/v2/rerank"

    async def ready(self) -> None:
        """Asks for the model by its name."""
        await self._server.get(f"/v1/models/{quote(self.model, safe='')}")

    def fields(
        self, query: str, documents: Sequence[str], top_k: int | None, config: RerankRuntimeConfig
    ) -> dict[str, Any]:
        fields: dict[str, Any] = {"model": self.model, "query": query, "documents": list(documents)}
        if top_k is not None:
            fields["top_n"] = top_k
        merge_extra(fields, config.extra)
        return fields


class TEIRerank(_Rerank):
    """`POST /rerank` of Hugging Face's Text Embeddings Inference (§8.1). It keeps to top_k itself, as the server can't.

    chunk_size: the server's `--max-client-batch-size`; None: 32.
    """

    system = "tei"
    path = "/rerank"
    limits = False
    chunk_size = 32

    async def ready(self) -> None:
        """Asks for the server's health; it has one model."""
        await self._server.healthy("/health")

    def fields(
        self, query: str, documents: Sequence[str], top_k: int | None, config: RerankRuntimeConfig
    ) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "query": query,
            "texts": list(documents),
            "truncate": False,
            "return_text": config.return_documents,
        }
        merge_extra(fields, config.extra)
        return fields

    def entries(self, raw: Any) -> Any:
        return raw


def _check(config: object) -> None:
    if not isinstance(config, RerankRuntimeConfig):
        refuse("config", f"must be a RerankRuntimeConfig, not {type(config).__name__}")
    if not isinstance(config.return_documents, bool):
        refuse("config.return_documents", "must be true or false")
    if not isinstance(config.extra, Mapping):
        refuse("config.extra", f"must be a mapping, not {type(config.extra).__name__}")


def _results(entries: Any, first: int, maximum: int) -> list[ScoredDocument]:
    """The results of one request. first: index of its first document; maximum: how many it had."""
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ProviderInvalidResponse("the answer has no array of results")
    found: dict[int, ScoredDocument] = {}
    for entry in entries:
        index, score = entry.get("index"), entry.get("relevance_score", entry.get("score"))
        if type(index) is not int or not 0 <= index < maximum:
            raise ProviderInvalidResponse(f"a result has the index {index!r}; there are {maximum} documents")
        if index in found:
            raise ProviderInvalidResponse(f"two results have the index {index}")
        if type(score) not in (int, float):
            raise ProviderInvalidResponse(f"the score of result {index} is not a number")
        found[index] = ScoredDocument(first + index, score, _echo(entry.get("document", entry.get("text"))))
    return list(found.values())


def _echo(document: Any) -> str | None:
    if isinstance(document, dict):
        document = document.get("text")
        return document if isinstance(document, str) else None
    if document is None or isinstance(document, str):
        return document
    raise ProviderInvalidResponse(f"a result's document is a {type(document).__name__}")


def _usage(raws: Sequence[Any]) -> RerankUsage | None:
    units, input_tokens = _sum([count(billed(raw), "search_units") for raw in raws]), _sum(list(map(tokens, raws)))
    return None if units is None and input_tokens is None else RerankUsage(units, input_tokens)


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [number for number in counts if number is not None]
    return sum(known) if len(known) == len(counts) else None

"""The contract of embedding and reranking (OpenArmature retrieval-provider §2–§7), and its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

Raw: TypeAlias = "dict[str, Any] | list[Any]"


@dataclass(frozen=True, slots=True)
class EmbeddingRuntimeConfig:
    """Settings of one `embed()`; a field that is None stays out of the request.

    dimensions: length of the vectors, for models that offer several.
    input_type: what the texts are for: `query` or `document`; Cohere also knows `classification` and `clustering`.
        None for models that treat all texts alike.
    extra: further fields of the request body, sent as they are; one that the call itself sets may only repeat it.
    """

    dimensions: int | None = None
    input_type: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EmbeddingUsage:
    input_tokens: int


@dataclass(frozen=True, slots=True)
class EmbeddingResponse:
    """The answer to one `embed()`.

    vectors: one for each text, in the order of the texts, all of length `dimensions`.
    model: as the server names it; else the provider's.
    usage: None if the server reports none, or for one of several requests none that is valid.
    response_id: of the first request; None if the server sends none.
    raw: the server's whole JSON; a list of them if the call took several requests.
    """

    vectors: tuple[tuple[float, ...], ...]
    model: str
    usage: EmbeddingUsage | None
    response_id: str | None
    dimensions: int
    raw: Raw


class EmbeddingProvider(Protocol):
    """One embedding model behind one server. Stateless and reentrant; it doesn't retry."""

    async def ready(self) -> None:
        """Returns if the next `embed()` is expected to succeed. Raises the same categories."""
        ...

    async def embed(self, input: Sequence[str], *, config: EmbeddingRuntimeConfig | None = None) -> EmbeddingResponse:
        """Embeds the texts, in several requests if the server takes fewer at a time.

        Raises provider_invalid_request before anything is sent, provider_invalid_response for an answer that doesn't
        have one vector for each text, all of one length, and the other categories as the server says.
        """
        ...


@dataclass(frozen=True, slots=True)
class RerankRuntimeConfig:
    """Settings of one `rerank()`.

    return_documents: whether the server sends the documents back. Cohere's never does.
    extra: see EmbeddingRuntimeConfig.
    """

    return_documents: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RerankUsage:
    """What the server reports; at least one of them."""

    search_units: int | None = None
    input_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ScoredDocument:
    """index: into the documents of the call. relevance_score: higher is more relevant; each model has a scale of its
    own. document: the text as the server sends it back; None if it doesn't."""

    index: int
    relevance_score: float
    document: str | None = None


@dataclass(frozen=True, slots=True)
class RerankResponse:
    """The answer to one `rerank()`. results: the most relevant first. The other fields: see EmbeddingResponse."""

    results: tuple[ScoredDocument, ...]
    model: str
    usage: RerankUsage | None
    response_id: str | None
    raw: Raw


class RerankProvider(Protocol):
    """One reranking model behind one server. Stateless and reentrant; it doesn't retry."""

    async def ready(self) -> None:
        """Returns if the next `rerank()` is expected to succeed. Raises the same categories."""
        ...

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_k: int | None = None,
        config: RerankRuntimeConfig | None = None,
    ) -> RerankResponse:
        """Scores the documents by their relevance to the query. top_k: the most results, at least 1; None for all.

        Raises provider_invalid_request before anything is sent, provider_invalid_response for results that don't fit
        the documents, and the other categories as the server says.
        """
        ...

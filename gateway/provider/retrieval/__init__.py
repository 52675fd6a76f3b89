"""Embedding and reranking models behind servers of four kinds: OpenArmature's retrieval provider."""

from gateway.provider.retrieval.contract import (
    EmbeddingProvider,
    EmbeddingResponse,
    EmbeddingRuntimeConfig,
    EmbeddingUsage,
    RerankProvider,
    RerankResponse,
    RerankRuntimeConfig,
    RerankUsage,
    ScoredDocument,
)
from gateway.provider.retrieval.embedding import CohereEmbedding, JinaEmbedding, OpenAIEmbedding, TEIEmbedding
from gateway.provider.retrieval.rerank import CohereRerank, GatewayRerank, JinaRerank, TEIRerank

__all__ = [
    "CohereEmbedding",
    "CohereRerank",
    "EmbeddingProvider",
    "EmbeddingResponse",
    "EmbeddingRuntimeConfig",
    "EmbeddingUsage",
    "GatewayRerank",
    "JinaEmbedding",
    "JinaRerank",
    "OpenAIEmbedding",
    "RerankProvider",
    "RerankResponse",
    "RerankRuntimeConfig",
    "RerankUsage",
    "ScoredDocument",
    "TEIEmbedding",
    "TEIRerank",
]

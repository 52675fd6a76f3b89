"""The part of `/openapi.json` about embeddings and ranking."""

from __future__ import annotations

from gateway.api.openapi_paths import OBJECT, TEXT, Json, described, list_of, object_of, operation
from gateway.features.vectors.wire.embeddings import CreateEmbedding, CreateRerank

ANSWERS: dict[str, Json] = {
    "EmbeddingList": object_of("object data model usage", data=list_of(OBJECT), model=TEXT, usage=OBJECT),
    "RerankList": object_of("results model", results=list_of(object_of("index relevance_score"))),
}

PATHS: dict[str, Json] = {
    "/v1/embeddings": {"post": operation("createEmbedding", "Vectors", "EmbeddingList", request="CreateEmbedding")},
    "/v1/rerank": {"post": operation("rerank", "Ranked texts", "RerankList", request="CreateRerank", tag="Jina")},
}


def schemas() -> dict[str, Json]:
    """The schemas of requests and answers, by name."""
    return ANSWERS | described({"CreateEmbedding": CreateEmbedding, "CreateRerank": CreateRerank})

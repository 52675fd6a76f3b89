"""Embeddings and ranking, by models with a role of their own."""

from __future__ import annotations

from gateway.feature import Feature, Routes

FEATURE = Feature(
    name="vectors",
    routes=(
        Routes({"[/v1]/embeddings": {"POST": "gateway.features.vectors.endpoints:embeddings"}}, api="embeddings"),
        Routes({"[/v1]/rerank": {"POST": "gateway.features.vectors.endpoints:rerank"}}, api="rerank"),
    ),
    openapi="gateway.features.vectors.openapi",
)

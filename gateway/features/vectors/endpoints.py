"""`/v1/embeddings` and `/v1/rerank`, by models with a role of their own."""

from __future__ import annotations

from typing import Literal

from gateway.config import Role
from gateway.core.in_thread import in_thread_if_large
from gateway.features.vectors.wire.embeddings import (
    CreateEmbedding,
    CreateRerank,
    Scores,
    Vectors,
    embedding_list,
    rerank_list,
)
from gateway.server.asgi import ASGIApp
from gateway.server.http import JSON, Request


async def embeddings(request: Request) -> ASGIApp:
    wanted = await request.translated(CreateEmbedding.parse)
    route = request.gateway.route(wanted.model, "embedding")
    async with route.post("embeddings", wanted.fields, "embeddings", request.caller, asked=wanted.model) as answer:
        data = await answer.whole()

        def made() -> JSON:
            return JSON(embedding_list(wanted, Vectors.parse(data, wanted.count), route.model.name, answer.tier))

        return await in_thread_if_large(len(data), made)


async def rerank(request: Request) -> ASGIApp:
    """By a model that ranks, else by the similarity of embeddings."""
    wanted = await request.translated(CreateRerank.parse)
    config = request.gateway.config
    named = config.models.get(wanted.model or "")
    roles = {role for model in (config.models.values() if named is None else [named]) for role in model.roles}
    role: Role = "embedding" if "embedding" in roles and "rerank" not in roles else "rerank"
    route = request.gateway.route(wanted.model, role)
    texts = CreateEmbedding([wanted.query, *wanted.texts], service_tier=wanted.service_tier)
    path: Literal["rerank", "embeddings"] = "rerank" if role == "rerank" else "embeddings"
    fields = wanted.fields if role == "rerank" else texts.fields
    async with route.post(path, fields, "rerank", request.caller, asked=wanted.model) as answer:
        data = await answer.whole()

        def made() -> JSON:
            scores = Scores.parse(data) if role == "rerank" else Scores.of(Vectors.parse(data, texts.count))
            return JSON(rerank_list(wanted, scores, route.model.name, answer.tier))

        return await in_thread_if_large(len(data), made)

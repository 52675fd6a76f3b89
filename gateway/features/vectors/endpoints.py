"""`/v1/embeddings` and `/v1/rerank`, by models with a role of their own."""

from __future__ import annotations

from gateway.config import Role
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
        vectors = Vectors.parse(await answer.whole())
        made = embedding_list(wanted, vectors, route.model.name, answer.tier)
    return JSON(made)


async def rerank(request: Request) -> ASGIApp:
    """By a model that ranks, else by the similarity of embeddings."""
    wanted = await request.translated(CreateRerank.parse)
    config = request.gateway.config
    named = config.models.get(wanted.model or "")
    roles = {role for model in (config.models.values() if named is None else [named]) for role in model.roles}
    role: Role = "embedding" if "embedding" in roles and "rerank" not in roles else "rerank"
    route = request.gateway.route(wanted.model, role)
    if role == "rerank":
        async with route.post("rerank", wanted.fields, "rerank", request.caller, asked=wanted.model) as answer:
            scores = Scores.parse(await answer.whole())
    else:
        texts = CreateEmbedding([wanted.query, *wanted.texts], service_tier=wanted.service_tier)
        async with route.post("embeddings", texts.fields, "rerank", request.caller, asked=wanted.model) as answer:
            scores = Scores.of(Vectors.parse(await answer.whole()))
    return JSON(rerank_list(wanted, scores, route.model.name, answer.tier))

"""`/v1/embeddings` and `/v1/rerank`, by models with a role of their own."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.api import endpoint
from gateway.api.chat import Client
from gateway.api.endpoint import Request, Row
from gateway.config import Role
from gateway.wire.embeddings import CreateEmbedding, CreateRerank, Scores, Vectors, embedding_list, rerank_list


class EmbeddingsFace(endpoint.RoutedFace):
    def rows(self) -> Iterable[Row]:
        return (("POST", "/embeddings", self.embeddings), ("POST", "/rerank", self.rerank))

    async def embeddings(self, request: Request, client: Client) -> None:
        asked = CreateEmbedding.parse(request.body)
        route = self.gateway.route(asked.model, "embedding")
        async with route.post("embeddings", asked.fields, "embeddings") as posted:
            vectors = Vectors.parse(await posted.whole())
        await endpoint.json(client, embedding_list(asked, vectors, route.model.name))

    async def rerank(self, request: Request, client: Client) -> None:
        """By a model that ranks, or by the likeness of embeddings."""
        asked = CreateRerank.parse(request.body)
        config = self.gateway.config
        named = config.models.get(asked.model or "")
        roles = {model.role for model in config.models.values()} if named is None else {named.role}
        role: Role = "embedding" if "embedding" in roles and "rerank" not in roles else "rerank"
        route = self.gateway.route(asked.model, role)
        if role == "rerank":
            async with route.post("rerank", asked.fields, "rerank") as posted:
                scores = Scores.parse(await posted.whole())
        else:
            texts = CreateEmbedding([asked.query, *asked.texts])
            async with route.post("embeddings", texts.fields, "rerank") as posted:
                scores = Scores.of(Vectors.parse(await posted.whole()))
        await endpoint.json(client, rerank_list(asked, scores, route.model.name))

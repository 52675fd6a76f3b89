"""`/v1/embeddings` and `/v1/rerank`, by models with a role of their own."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Raw

from gateway.api import face
from gateway.api.chat import Client
from gateway.api.face import Request, Row
from gateway.backends import Endpoint
from gateway.config import Role
from gateway.core import Route
from gateway.wire.embeddings import CreateEmbedding, CreateRerank, Scores, Vectors, embedding_list, rerank_list


class EmbeddingsFace(face.RoutedFace):
    def rows(self) -> Iterable[Row]:
        return (("POST", "/embeddings", self.embeddings), ("POST", "/rerank", self.rerank))

    async def embeddings(self, request: Request, client: Client) -> None:
        asked = CreateEmbedding.parse(request.body)
        route = self.gateway.route(asked.model, "embedding")
        vectors = Vectors.parse(await _answer(route, "embeddings", asked.fields))
        await face.json(client, embedding_list(asked, vectors, route.model.name))

    async def rerank(self, request: Request, client: Client) -> None:
        """By a model that ranks, or by the likeness of embeddings."""
        asked = CreateRerank.parse(request.body)
        config = self.gateway.config
        named = config.models.get(asked.model or "")
        roles = {model.role for model in config.models.values()} if named is None else {named.role}
        role: Role = "embedding" if "embedding" in roles and "rerank" not in roles else "rerank"
        route = self.gateway.route(asked.model, role)
        if role == "rerank":
            scores = Scores.parse(await _answer(route, "rerank", asked.fields))
        else:
            texts = CreateEmbedding([asked.query, *asked.texts])
            scores = Scores.of(Vectors.parse(await _answer(route, "embeddings", texts.fields)))
        await face.json(client, rerank_list(asked, scores, route.model.name))


async def _answer(route: Route, endpoint: Endpoint, fields: dict[str, Raw]) -> bytes:
    async with route.post(endpoint, fields) as (reply, backend):
        body = await reply.whole()
        if b'"error"' in body[:200] and isinstance(found := msgspec.json.decode(body), dict) and found.get("error"):
            raise backend.error(500, body)
        return body

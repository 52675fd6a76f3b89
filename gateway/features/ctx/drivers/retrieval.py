"""`openai-embeddings` and `openai-rerank`: ask models for vectors and scores. The answer is JSON, as one text."""

from __future__ import annotations

from typing import Any

from gateway.core import Gateway
from gateway.features.ctx.drivers.base import Ask, NotOffered
from gateway.features.ctx.errors import TooLong
from gateway.features.ctx.events import AnswerTooLong, Event, EventWriter
from gateway.features.vectors.wire.embeddings import (
    CreateEmbedding,
    CreateRerank,
    EmbeddingUsage,
    Scores,
    Vectors,
    embedding_list,
    rerank_list,
)
from gateway.wire.chat import encode


class OpenAIEmbeddings:
    """A text gives a vector, a list of texts a list of vectors."""

    async def open(self, gateway: Gateway, ask: Ask) -> Known:
        if ask.model is None or ask.model.role != "embedding":
            raise NotOffered("the model gives no embeddings")
        wanted = CreateEmbedding.parse(encode(ask.fields))
        route = gateway.route(ask.model.name, "embedding")
        async with route.post("embeddings", wanted.fields, "ctx") as answer:
            vectors = Vectors.parse(await answer.whole(), wanted.count)
        found: list[Any] = [one["embedding"] for one in embedding_list(wanted, vectors, ask.model.name)["data"]]
        return Known(ask, found[0] if isinstance(wanted.input, str) else found, vectors.usage)


class OpenAIRerank:
    """Gives the documents' places and scores, best first."""

    async def open(self, gateway: Gateway, ask: Ask) -> Known:
        if ask.model is None or ask.model.role != "rerank":
            raise NotOffered("the model ranks no documents")
        wanted = CreateRerank.parse(encode(ask.fields))
        async with gateway.route(ask.model.name, "rerank").post("rerank", wanted.fields, "ctx") as answer:
            scores = Scores.parse(await answer.whole())
        return Known(ask, rerank_list(wanted, scores, ask.model.name)["results"], scores.usage)


class Known:
    """An answer that came whole."""

    cut = False

    def __init__(self, ask: Ask, value: Any, usage: EmbeddingUsage) -> None:
        writer = EventWriter(ask.run, ask.limit)
        try:
            writer.text(encode(value).decode())
        except AnswerTooLong as error:
            raise TooLong(str(error)) from None
        if usage.prompt_tokens or usage.total_tokens:
            writer.usage(usage.prompt_tokens or usage.total_tokens, 0, 0)
        self._events: list[Event] = writer.finish()

    async def events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        pass

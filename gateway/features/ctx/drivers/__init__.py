"""The drivers by name, as an object's `driver` file has them. A row of the table adds a driver."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from gateway.features.ctx.drivers.base import Driver

DRIVERS = {
    "openai-chat": "gateway.features.ctx.drivers.chat:OpenAIChat",
    "openai-responses": "gateway.features.ctx.drivers.responses:OpenAIResponses",
    "openai-embeddings": "gateway.features.ctx.drivers.retrieval:OpenAIEmbeddings",
    "openai-rerank": "gateway.features.ctx.drivers.retrieval:OpenAIRerank",
    "openai-transcriptions": "gateway.features.ctx.drivers.media:OpenAITranscriptions",
    "openai-speech": "gateway.features.ctx.drivers.media:OpenAISpeech",
    "openai-images": "gateway.features.ctx.drivers.media:OpenAIImages",
    "debug": "gateway.features.ctx.drivers.chat:Debug",
}


def load(name: str) -> Driver | None:
    """The driver, or None if the name is unknown."""
    place = DRIVERS.get(name)
    if place is None:
        return None
    module, _, attribute = place.partition(":")
    return cast(Driver, getattr(import_module(module), attribute)())

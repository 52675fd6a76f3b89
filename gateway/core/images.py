"""Images in requests to a model that reads text alone: left out, described by another model, or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Raw
from msgspec.structs import replace

from gateway.backends import Backend
from gateway.config import Model
from gateway.errors import ImagesUnsupported, ProviderUnsupportedContentBlock
from gateway.wire.chat import ChatRequest, decode, encode
from gateway.wire.images import may_have, urls, with_texts

TEXT_ONLY = ("llama-cpp-python", "echo")
"""Runtimes that get no images, whatever their server can do."""


class BackendSource(Protocol):
    async def backend(self) -> Backend: ...


class Describes(Protocol):
    async def describe(self, model: str, images: Sequence[str], request: ChatRequest) -> Mapping[str, str]:
        """The texts in the place of images, by URL; without those that couldn't be described.

        model: the one that describes them. request: of which they are, and on whose account the descriptions are.
        """
        ...


class Images:
    """What becomes of the images in the requests for one model.

    text_only: the model is known to read text alone, and gets its requests `fitted`. Of other models the first refusal
    tells, each time: `refused`.
    """

    def __init__(self, model: Model, describer: Callable[[], Describes] | None = None) -> None:
        """describer: called for the first image; None if nobody describes images, whatever the model's settings say."""
        self._model = model
        self.describer = describer
        self._refuses = model.images == "refuse"
        self.text_only = not self._refuses and _reads_text(model)

    async def fitted(self, request: ChatRequest) -> ChatRequest:
        """The request as the model gets it: for one that reads text, with texts in place of its images."""
        if not (self.text_only and may_have(request.fields["messages"])):
            return request
        return await self._replaced(request)

    async def refused(
        self, request: ChatRequest, refusal: ProviderUnsupportedContentBlock, server: BackendSource
    ) -> ChatRequest | None:
        """The same for a request that the engine refused; None unless its images are the reason."""
        if self._refuses or not urls(decode(request.fields["messages"])):
            return None
        if not isinstance(refusal, ImagesUnsupported) and (await (await server.backend()).about()).sees is not False:
            return None
        return await self._replaced(request)

    def counted(self, request: ChatRequest) -> ChatRequest:
        """The request whose tokens to count: for a model that reads text, without images."""
        if not (self.text_only and may_have(request.fields["messages"])):
            return request
        messages, _ = with_texts(decode(request.fields["messages"]), {})
        return replace(request, fields={**request.fields, "messages": Raw(encode(messages))})

    async def _replaced(self, request: ChatRequest) -> ChatRequest:
        messages = decode(request.fields["messages"])
        texts: Mapping[str, str] = {}
        if self._model.images == "describe" and self.describer is not None and (found := urls(messages)):
            assert self._model.describe_with is not None
            texts = await self.describer().describe(self._model.describe_with, found, request)
        messages, kinds = with_texts(messages, texts)
        if not kinds:
            return request
        fields = {**request.fields, "messages": Raw(encode(messages))}
        return replace(request, fields=fields, changes={**request.changes, **kinds})


def _reads_text(model: Model) -> bool:
    """Whether the model is certain to read text alone, without asking anybody."""
    engine = model.engine
    if model.runtime in TEXT_ONLY:
        return True
    ours = model.startable and engine.command is None
    named = (model.base_url, model.uds, model.port)
    if not ours or model.replicas or any(each is not None for each in named):
        return False  # whoever started the server may have given it more
    return model.mmproj_path is None and not any("mmproj" in argument for argument in engine.args)

"""Images in requests to a model that reads text alone: left out, described by another model, or refused."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Protocol

from msgspec import Raw

from gateway.backends import Backend
from gateway.config import Model
from gateway.errors import ImagesUnsupported, ProviderUnsupportedContentBlock
from gateway.wire.chat import ChatRequest, decode, encode
from gateway.wire.images import may_have, urls, with_texts

if TYPE_CHECKING:
    from gateway.core.sender import Asked

TEXT_ONLY = ("llama-cpp-python", "echo")
"""Runtimes that get no images, whatever their server can do."""


class Server(Protocol):
    async def backend(self) -> Backend: ...


class Asker(Protocol):
    """What answers requests for the model; a Route."""

    def ask(self, request: ChatRequest) -> Awaitable[Asked]: ...

    @property
    def server(self) -> Server: ...


class Describes(Protocol):
    async def describe(self, model: str, images: Sequence[str], request: ChatRequest) -> Mapping[str, str]:
        """The texts in the place of images, by URL; without those that couldn't be described.

        model: the one that describes them. request: of which they are, and on whose account the descriptions are.
        """
        ...


class Images:
    """What becomes of the images in the requests for one model.

    text_only: the model is known to read text alone, and its requests go through `ask`. Of other models the first
    refusal tells, each time: `ask_again`.
    """

    def __init__(self, model: Model, describer: Describes | None = None) -> None:
        """describer: None if nobody describes images, whatever the model's settings say."""
        self._model = model
        self.describer = describer
        self._refuses = model.images == "refuse"
        self.text_only = not self._refuses and _reads_text(model)

    async def ask(self, route: Asker, request: ChatRequest) -> Asked:
        """Sends the request, with texts in place of its images. Raises as `Route.ask`, the request then unchanged."""
        if not (self.text_only and may_have(request.fields["messages"])):
            return await route.ask(request)
        return await self._ask(route, request)

    async def _ask(self, route: Asker, request: ChatRequest) -> Asked:
        before = request.fields, request.changes
        await self._replace(request)
        try:
            return await route.ask(request)
        except BaseException:
            # Another model may be asked next, which sees them.
            request.fields, request.changes = before
            raise

    async def ask_again(self, request: ChatRequest, refusal: ProviderUnsupportedContentBlock, route: Asker) -> Asked:
        """Sends a request again that the engine refused. Raises `refusal` unless its images are the reason."""
        if self._refuses or not urls(decode(request.fields["messages"])):
            raise refusal
        if (
            not isinstance(refusal, ImagesUnsupported)
            and (await (await route.server.backend()).about()).sees is not False
        ):
            raise refusal
        return await self._ask(route, request)

    def counted(self, request: ChatRequest) -> ChatRequest:
        """The request whose tokens to count: for a model that reads text, without images."""
        if not (self.text_only and may_have(request.fields["messages"])):
            return request
        messages, _ = with_texts(decode(request.fields["messages"]), {})
        counted = copy(request)
        counted.fields = {**request.fields, "messages": Raw(encode(messages))}
        return counted

    async def _replace(self, request: ChatRequest) -> None:
        messages = decode(request.fields["messages"])
        texts: Mapping[str, str] = {}
        if self._model.images == "describe" and self.describer is not None and (found := urls(messages)):
            assert self._model.describe_with is not None
            texts = await self.describer.describe(self._model.describe_with, found, request)
        messages, kinds = with_texts(messages, texts)
        if kinds:
            request.fields = {**request.fields, "messages": Raw(encode(messages))}
            request.changes = {**request.changes, **kinds}


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

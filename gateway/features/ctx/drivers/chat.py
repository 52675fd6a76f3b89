"""`openai-chat`: asks through this gateway's chat path. `debug`: the built-in echo, without any engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from gateway.backends.echo import EchoBackend
from gateway.config import Model
from gateway.core import Gateway
from gateway.errors import ProviderInvalidRequest
from gateway.features.ctx.drivers.base import Ask, NotOffered
from gateway.features.ctx.errors import TooLong
from gateway.features.ctx.events import AnswerTooLong, Event, EventReader
from gateway.wire.chat import ChatRequest, encode


class OpenAIChat:
    async def open(self, gateway: Gateway, ask: Ask) -> ChatAnswering:
        if ask.model is None:
            raise NotOffered("the built-in echo has no server")
        return ChatAnswering(await gateway.chat(_request(ask.fields, ask.model.name)), ask)


class Debug:
    async def open(self, gateway: Gateway, ask: Ask) -> ChatAnswering:
        request = _request(ask.fields, "echo")
        return ChatAnswering(
            await EchoBackend(Model(name="echo", runtime="echo"), None).open(request, request.fields), ask
        )


class _Chunks(Protocol):
    async def payloads(self) -> list[bytes]: ...

    def close(self) -> None: ...


class ChatAnswering:
    def __init__(self, run: _Chunks, ask: Ask) -> None:
        self._run = run
        self._reader = EventReader(ask.run, ask.limit)
        self._ended = False
        self._failed: TooLong | None = None

    @property
    def cut(self) -> bool:
        return self._reader.cut

    async def events(self) -> list[Event]:
        while not self._ended:
            if self._failed is not None:
                raise self._failed
            payloads = await self._run.payloads()
            try:
                events = self._reader.feed(payloads) if payloads else self._reader.finish()
            except AnswerTooLong as error:
                # The events before the failure go first.
                self._failed = TooLong(str(error))
                events = self._reader.take()
            self._ended = not payloads
            if events:
                return events
        return []

    def close(self) -> None:
        self._run.close()


def _request(fields: Mapping[str, Any], model: str) -> ChatRequest:
    if fields.get("n") not in (None, 1):
        raise ProviderInvalidRequest("n: an object gives one answer at a time", param="n")
    return ChatRequest.parse(
        encode({**fields, "model": model, "stream": True, "stream_options": {"include_usage": True}}), "ctx"
    )

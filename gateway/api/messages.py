"""Anthropic's Messages API over the gateway's one stream of chat chunks."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.api import endpoint
from gateway.api.chat import Client, stand_in
from gateway.api.endpoint import Request, Row
from gateway.errors import GatewayError
from gateway.wire.chat import ChatRequest, encode
from gateway.wire.messages.answer import MessageEncoder, error_object, sse
from gateway.wire.messages.request import CreateMessage, chat_fields, dropped
from gateway.wire.pieces import pieces


class MessagesFace(endpoint.RoutedFace):
    def rows(self) -> Iterable[Row]:
        return (
            ("POST", "/messages", self.create),
            ("POST", "/messages/count_tokens", self.count_tokens),
        )

    async def create(self, request: Request, client: Client) -> None:
        asked = CreateMessage.parse(request.body)
        model = self.gateway.route(asked.model).model.name
        omitted = asked.thinking is not None and asked.thinking.display == "omitted"
        encoder = MessageEncoder(model, thinking=asked.thinks, omitted=omitted)
        chat = ChatRequest.parse(encode(chat_fields(asked)), "messages")
        if asked.stream:
            await endpoint.stream(self.gateway, chat, _Encoding(encoder), client)
            return
        with await self.gateway.chat(chat) as run:
            encoder.feed(pieces(await run.whole()))
        encoder.finish()
        await endpoint.json(client, encoder.message, (*endpoint.without(dropped(asked)), *stand_in(run)))

    async def count_tokens(self, request: Request, client: Client) -> None:
        asked = CreateMessage.parse(request.body, counting=True)
        count = await self.gateway.count_tokens(ChatRequest.parse(encode(chat_fields(asked))))
        await endpoint.json(client, {"input_tokens": count.tokens}, endpoint.told(count))

    def error_body(self, error: GatewayError) -> bytes:
        return encode(error_object(error))


class _Encoding:
    def __init__(self, encoder: MessageEncoder) -> None:
        self._encoder = encoder

    def opening(self) -> bytes:
        return b"".join(map(sse, self._encoder.opening()))

    def feed(self, payloads: list[bytes]) -> bytes:
        return b"".join(sse(event) for payload in payloads for event in self._encoder.feed(pieces(payload)))

    async def finish(self) -> bytes:
        return b"".join(map(sse, self._encoder.finish()))

    def fail(self, error: GatewayError) -> bytes:
        return b"".join(map(sse, self._encoder.fail(error)))

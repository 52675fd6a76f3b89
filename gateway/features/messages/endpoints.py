"""Anthropic's Messages API over the gateway's one stream of chat chunks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from gateway.api.streaming import (
    EventEncoding,
    chat_stream,
    dropped_header,
    estimate_header,
    extra_headers,
    write_events,
)
from gateway.core.in_thread import in_thread_if_large
from gateway.errors import ProviderInvalidModel
from gateway.features.messages.wire.answer import MessageEncoder
from gateway.features.messages.wire.request import CreateMessage, chat_fields, dropped
from gateway.server.asgi import ASGIApp, Headers, Receive, Scope, Send
from gateway.server.http import JSON, Request
from gateway.server.keepalive import SSE_HEADERS
from gateway.wire.chat import ChatRequest, encode
from gateway.wire.pieces import pieces

CLAUDE_CODE = "claude-cli/"
"""How its User-Agent begins."""


class MessageEncoding(EventEncoding):
    """Anthropic's events, `ping` among them."""

    ping = write_events([{"type": "ping"}])

    def __init__(self, encoder: MessageEncoder, chat: ChatRequest, headers: Headers) -> None:
        """headers: of the stream, besides its own."""
        super().__init__(encoder)
        self.headers = (*SSE_HEADERS, *headers)
        self._message = encoder
        self._chat = chat

    def opening(self) -> bytes:
        self._message.name_tier(self._chat.serving.tier)
        self._message.read(*self._chat.serving.prompt_tokens)
        return super().opening()


async def create(request: Request) -> ASGIApp:
    if not request.headers.get("user-agent", "").startswith(CLAUDE_CODE):
        return await _create(request)
    with _shown_by_claude_code():
        answer = await _create(request)

    async def shown(scope: Scope, receive: Receive, send: Send) -> None:
        with _shown_by_claude_code():
            await answer(scope, receive, send)

    return shown


@contextmanager
def _shown_by_claude_code() -> Iterator[None]:
    """Claude Code doesn't show the message of a 404, which names the cure, but a text of its own. It shows that of a
    410, and doesn't ask again."""
    try:
        yield
    except ProviderInvalidModel as error:
        raise ProviderInvalidModel(
            error.message, code=error.code, param=error.param, status=410, details=error.details
        ) from error


async def _create(request: Request) -> ASGIApp:
    size = len(await request.body())
    wanted = await request.translated(CreateMessage.parse)
    model = request.gateway.route(wanted.model).model.name
    omitted = wanted.thinking is not None and wanted.thinking.display == "omitted"
    encoder = MessageEncoder(model, thinking=wanted.thinks, omitted=omitted)
    without = dropped_header(b"x-ctxgate-dropped-tools", dropped(wanted))
    chat = await in_thread_if_large(size, _chat, request, wanted)
    del wanted  # it may be large
    if chat.stream:
        return chat_stream(request.gateway, chat, MessageEncoding(encoder, chat, without))
    with await request.gateway.chat(chat) as run:
        encoder.name_tier(chat.serving.tier)
        encoder.feed(pieces(await run.whole()))
    encoder.finish()
    return JSON(encoder.message, (*without, *extra_headers(run)))


def _chat(request: Request, wanted: CreateMessage) -> ChatRequest:
    """Raises as `chat_fields`."""
    return ChatRequest.parse(encode(_fields(request, wanted)), "messages", request.caller)


def _fields(request: Request, wanted: CreateMessage) -> dict[str, Any]:
    """The fields of the chat request. Raises as `chat_fields`."""
    fields, model = chat_fields(wanted), request.gateway.route(wanted.model).model
    if wanted.thinking is None and (
        "chat_template_kwargs" in model.defaults or (model.base_url or "").startswith("https:")
    ):
        # What config.yaml says holds, and services on the internet may refuse a field that they don't know.
        del fields["chat_template_kwargs"]
    return fields


async def count_tokens(request: Request) -> ASGIApp:
    size = len(await request.body())
    wanted = await request.translated(partial(CreateMessage.parse, counting=True))
    chat = await in_thread_if_large(size, _chat, request, wanted)
    del wanted
    count = await request.gateway.count_tokens(chat)
    return JSON({"input_tokens": count.tokens}, estimate_header(count))

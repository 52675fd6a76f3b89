"""Anthropic's Messages API over the gateway's one stream of chat chunks."""

from __future__ import annotations

from gateway.api.streaming import EventEncoding, chat_stream, dropped_tools, estimate, stand_in, write_events
from gateway.server.asgi import ASGIApp
from gateway.server.http import JSON, Request
from gateway.wire.chat import ChatRequest, encode
from gateway.wire.messages.answer import MessageEncoder
from gateway.wire.messages.request import CreateMessage, chat_fields, dropped
from gateway.wire.pieces import pieces


class MessageEncoding(EventEncoding):
    """Anthropic's events, `ping` among them."""

    ping = write_events([{"type": "ping"}])


async def create(request: Request) -> ASGIApp:
    wanted = CreateMessage.parse(await request.body())
    model = request.gateway.route(wanted.model).model.name
    omitted = wanted.thinking is not None and wanted.thinking.display == "omitted"
    encoder = MessageEncoder(model, thinking=wanted.thinks, omitted=omitted)
    chat = ChatRequest.parse(encode(chat_fields(wanted)), "messages")
    if wanted.stream:
        return chat_stream(request.gateway, chat, MessageEncoding(encoder))
    with await request.gateway.chat(chat) as run:
        encoder.feed(pieces(await run.whole()))
    encoder.finish()
    return JSON(encoder.message, (*dropped_tools(dropped(wanted)), *stand_in(run)))


async def count_tokens(request: Request) -> ASGIApp:
    wanted = CreateMessage.parse(await request.body(), counting=True)
    count = await request.gateway.count_tokens(ChatRequest.parse(encode(chat_fields(wanted))))
    return JSON({"input_tokens": count.tokens}, estimate(count))

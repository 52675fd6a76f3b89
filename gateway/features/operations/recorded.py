"""`POST /-/chat/completions`: a chat that the request log records, whatever `log.bodies` says.

A program whose base URL ends in `/-` instead of `/v1` is recorded, and no other.
"""

from __future__ import annotations

from functools import partial

from gateway.api.chat import answer_headers
from gateway.api.streaming import FunctionsEncoding, PayloadEncoding, chat_stream
from gateway.server.asgi import ASGIApp, Receive, Scope, Send
from gateway.server.client import ASGIClient
from gateway.server.http import Request
from gateway.wire.chat import ChatRequest, with_tier


async def create(request: Request) -> ASGIApp:
    chat = await request.translated(partial(ChatRequest.parse, caller=request.caller, recorded=True))
    if chat.stream:
        encoding = (FunctionsEncoding if chat.functions else PayloadEncoding)(chat.serving)
        return chat_stream(request.gateway, chat, encoding)
    with await request.gateway.chat(chat) as run:
        body = await run.whole()
        headers = answer_headers(run)
    if chat.functions:
        from gateway.wire.rare import old_answer

        body = old_answer(body)
    if chat.serving.tier is not None:
        body = with_tier(body, chat.serving.tier)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await ASGIClient(send).whole(200, headers, body)

    return answer

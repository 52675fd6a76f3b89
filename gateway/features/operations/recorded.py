"""`POST /-/chat/completions`: a chat that the request log records, whatever `log.bodies` says.

A program whose base URL ends in `/-` instead of `/v1` is recorded, and no other.
"""

from __future__ import annotations

from functools import partial

from gateway.api.chat import answer_chat
from gateway.server.asgi import ASGIApp, Receive, Scope, Send
from gateway.server.client import ASGIClient
from gateway.server.http import Request
from gateway.wire.chat import ChatRequest


async def create(request: Request) -> ASGIApp:
    chat = await request.translated(partial(ChatRequest.parse, caller=request.caller, recorded=True))

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await answer_chat(request.gateway, chat, ASGIClient(send))

    return answer

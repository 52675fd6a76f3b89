"""`POST /-/chat/completions`: a chat that the request log records, whatever `log.bodies` says.

A program whose base URL ends in `/-` instead of `/v1` is recorded, and no other.
"""

from __future__ import annotations

from gateway.api.dispatch import Dispatch
from gateway.server.asgi import ASGIApp, Receive, Scope, Send
from gateway.server.client import ASGIClient
from gateway.server.http import Request


async def create(request: Request) -> ASGIApp:
    body, chat = await request.body(), request.services.shared(Dispatch).chat

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await chat.answer(body, scope["headers"], ASGIClient(send), request.caller, recorded=True)

    return answer

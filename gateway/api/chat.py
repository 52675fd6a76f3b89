"""`POST /v1/chat/completions`: the hot route.

`Chat.answer` answers a request; a `StreamedAnswer` sends chunks. It writes to a `Client`: `ASGIClient` behind any ASGI
server, `ChatCycle` behind the fast protocol (`gateway.server.fast_protocol`), which saves the scope, the messages and a
task for each request.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Protocol

from gateway.api.streaming import FunctionsEncoding, PayloadEncoding, chat_stream, extra_headers
from gateway.core import Gateway, Run
from gateway.core.in_thread import LARGE, in_thread_if_large
from gateway.errors import GatewayError
from gateway.feature import offered
from gateway.server.asgi import ClientGone, Headers, Receive, Scope, Send, check_encoding, until_gone
from gateway.server.bodies import read_body
from gateway.server.client import INTERNAL, JSON_TYPE, ASGIClient, Client, respond_error
from gateway.server.principal import CALLER_KEY
from gateway.wire.chat import MENDED, Caller, ChatRequest, with_tier

PATHS = ("/v1/chat/completions", "/chat/completions")

log = logging.getLogger("ctxgate")


class SpokenChats(Protocol):
    """Answers chats that want sound: `modalities: ["text", "audio"]`."""

    async def answer(self, body: bytes, client: Client, caller: Caller) -> bool:
        """False: the chat wants no sound, or its model has none. Raises GatewayError."""


class Chat:
    """Answers a request's body. Cancel it when the client leaves: that cancels the engine's work, too."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._spoken: SpokenChats | None = None
        """Made by the first chat that wants sound."""

    async def answer(
        self, body: bytes, headers: Headers, client: Client, caller: Caller, recorded: bool = False
    ) -> None:
        """headers: the request's. They explain a body that can't be read. recorded: see `ChatRequest`."""
        try:
            try:
                if len(body) <= LARGE:
                    request = ChatRequest.parse(body, "chat", caller, recorded=recorded)
                else:
                    request = await in_thread_if_large(
                        len(body), partial(ChatRequest.parse, body, "chat", caller, recorded=recorded)
                    )
            except GatewayError as error:
                check_encoding(headers)
                if error.param not in ("modalities", "audio"):
                    raise
                self._spoken = self._spoken or offered("spoken_chats")(self.gateway)
                if not await self._spoken.answer(body, client, caller):
                    raise
                return
            if request.stream:
                encoding = (FunctionsEncoding if request.functions else PayloadEncoding)(request.serving)
                await chat_stream(self.gateway, request, encoding).send(client)
                return
            with await self.gateway.chat(request) as run:
                answer = await run.whole()
                if request.functions:
                    from gateway.wire.rare import old_answer

                    answer = old_answer(answer)
                if request.serving.tier is not None:
                    answer = with_tier(answer, request.serving.tier)
                await client.whole(200, answer_headers(run), answer)
        except GatewayError as error:
            if not error.logged:
                self.gateway.request_log.refused("chat", caller, error, body)
            await respond_error(client, error)
        except Exception:
            log.exception("chat failed")
            await respond_error(client, INTERNAL)


WHOLE_HEADERS: dict[str, Headers] = {mended: (JSON_TYPE, (b"x-ctxgate-mended", mended.encode())) for mended in MENDED}


def answer_headers(run: Run) -> Headers:
    """The headers of a whole answer. A stream has most of it in the `ctxgate` field of its last chunk; see also
    `extra_headers`."""
    answer = run.answer
    headers = WHOLE_HEADERS[answer.mended]
    if run.request.fallback is not None or answer.report.healed:
        headers = (*headers, *extra_headers(run))
    if run.enforced is not None:
        headers = (*headers, (b"x-ctxgate-enforced", run.enforced_by.encode()))
    if (decided := answer.report.decided) is not None:
        headers = (*headers, (b"x-ctxgate-call-probability", b"%.4f" % decided.probability))
    return headers


async def chat_asgi(chat: Chat, scope: Scope, receive: Receive, send: Send) -> None:
    """`chat` as an ASGI endpoint. Raises what `read_body` raises."""
    try:
        body = await read_body(scope, receive)
    except ClientGone:
        return
    await until_gone(chat.answer(body, scope["headers"], ASGIClient(send), scope[CALLER_KEY]), receive)

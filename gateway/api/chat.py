"""`POST /v1/chat/completions`: the hot route.

`Chat.answer` does it all. It writes to a `Client`: `ASGIClient` behind any ASGI server, `ChatCycle` behind the fast
protocol (`gateway.server.fast_protocol`), which saves the scope, the messages and a task for each request.
"""

from __future__ import annotations

import logging

from gateway.core import Gateway, Run
from gateway.errors import GatewayError
from gateway.server.asgi import ClientGone, Headers, Receive, Scope, Send, check_encoding, until_gone
from gateway.server.bodies import read_body
from gateway.server.client import INTERNAL, JSON_TYPE, ASGIClient, Client, respond_error
from gateway.server.keepalive import SSE_HEADERS, KeepAlive
from gateway.wire.chat import ChatRequest, encode
from gateway.wire.sse import DONE, event, events

FOREVER = 1e8
"""Seconds until a comment that shall never come."""

PATHS = ("/v1/chat/completions", "/chat/completions")

log = logging.getLogger("ctxgate")


class Chat:
    """Answers a request's body. Cancel it when the client leaves: that cancels the engine's work, too."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.configured()

    def configured(self) -> None:
        """Applies the gateway's current configuration."""
        server = self.gateway.config.server
        self.max_body = server.max_body_bytes
        self._progress_after = server.progress_after_seconds if server.progress_comments else FOREVER
        self._keep_alive = server.keep_alive_seconds if server.progress_comments else FOREVER

    async def answer(self, body: bytes, headers: Headers, client: Client) -> None:
        """headers: the request's. They explain a body that can't be read."""
        try:
            try:
                request = ChatRequest.parse(body)
            except GatewayError:
                check_encoding(headers)
                raise
            if request.stream:
                await self._stream(request, client)
                return
            with await self.gateway.chat(request) as run:
                body = await run.whole()
                await client.whole(200, _headers(run), body)
        except GatewayError as error:
            await respond_error(client, error)
        except Exception:
            log.exception("chat failed")
            await respond_error(client, INTERNAL)

    async def _stream(self, request: ChatRequest, client: Client) -> None:
        """An error before the first byte becomes a status; after it, a frame of the stream and its end mark."""
        keepalive = KeepAlive(
            client, request.describe_progress, progress_after=self._progress_after, keep_alive=self._keep_alive
        )
        try:
            with await self.gateway.chat(request) as run:
                payloads = await run.payloads()
                await keepalive.begin((*SSE_HEADERS, *stand_in(run)) if run.fallback is not None else SSE_HEADERS)
                if (sink := client.sink()) is not None:
                    run.push_to(sink)
                while payloads:
                    if keepalive.busy:
                        await keepalive.settle()
                    await client.write(events(payloads))
                    payloads = await run.payloads()
            last = DONE
        except GatewayError as error:
            if not keepalive.started:
                raise
            last = event(encode(error.body())) + DONE
        except Exception:
            if not keepalive.started:
                raise
            log.exception("a stream of model %s broke", request.model)
            last = event(encode(INTERNAL.body())) + DONE
        finally:
            keepalive.close()
        await keepalive.settle()
        await client.end(last)


WHOLE_HEADERS: dict[str, Headers] = {
    mended: (JSON_TYPE, (b"x-ctxgate-mended", mended.encode())) for mended in ("none", "lexical", "schema")
}


def _headers(run: Run) -> Headers:
    """The headers of a whole answer. A stream has the same facts in the `ctxgate` field of its last chunk."""
    answer = run.answer
    headers = WHOLE_HEADERS[answer.mended]
    if run.fallback is not None:
        headers = (*headers, *stand_in(run))
    if run.enforced is not None:
        headers = (*headers, (b"x-ctxgate-enforced", run.enforced_by.encode()))
    if healed := answer.healed:
        counts = ", ".join(f"{kind}={count}" for kind, count in healed.items())
        return (*headers, (b"x-ctxgate-healed", counts.encode()))
    return headers


def stand_in(run: Run) -> Headers:
    """Names the model that answers, if it isn't the one that was asked. A chat's stream also names it in the `ctxgate`
    field of its last chunk."""
    return () if run.fallback is None else ((b"x-ctxgate-fallback", run.fallback.encode()),)


async def chat_asgi(chat: Chat, scope: Scope, receive: Receive, send: Send) -> None:
    """`chat` as an ASGI endpoint. Raises what `read_body` raises."""
    try:
        body = await read_body(scope, receive)
    except ClientGone:
        return
    await until_gone(chat.answer(body, scope["headers"], ASGIClient(send)), receive)

"""What the faces beside the hot route have in common: a table of paths, a checked request, a stream that fails well."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol
from urllib.parse import parse_qsl

from msgspec import Struct

from gateway.api.chat import (
    FOREVER,
    INTERNAL,
    JSON_TYPE,
    ASGIClient,
    Client,
    log,
    stand_in,
)
from gateway.core import Gateway
from gateway.errors import GatewayError, ProviderInvalidRequest
from gateway.request.token_estimate import TokenCount
from gateway.server.asgi import ClientGone, Headers, Receive, Scope, Send, read_body, until_gone
from gateway.server.keepalive import SSE_HEADERS, KeepAlive
from gateway.server.principal import SCOPE_KEY, Principal
from gateway.services import Services
from gateway.wire.chat import ChatRequest, encode

MAX_KINDS = 1000
"""Characters of a header that names what the client wrote."""

_UNSENDABLE = re.compile("[^ -~]")


class Request(Struct, frozen=True):
    """parts: what the groups of the path's pattern matched."""

    method: str
    path: str
    parts: tuple[str, ...]
    query: Mapping[str, str]
    headers: Headers
    body: bytes
    principal: Principal


Handler = Callable[[Request, Client], Awaitable[None]]
Row = tuple[str, str, Handler]
"""Method, pattern of the whole path without `/v1`, and who answers."""


class MethodNotAllowed(ProviderInvalidRequest):
    def __init__(self, request: str, allowed: Sequence[str]) -> None:
        self.allowed = ", ".join(allowed)
        super().__init__(f"{request}: use {self.allowed}", code="method_not_allowed", status=405)

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*super().headers(), (b"allow", self.allowed.encode())]


class RoutedFace:
    """A `Face` whose paths are the rows of a table. Its handlers raise before they have sent anything, or not at all.

    `error_body` is OpenAI's unless a face has its own.
    """

    def __init__(self, services: Services) -> None:
        self.services = services
        self.gateway = services.gateway
        self._rows = [(method, re.compile(pattern), handler) for method, pattern, handler in self.rows()]

    def rows(self) -> Iterable[Row]:
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        method: str = scope["method"]
        handler, parts = self._handler(method, path.removeprefix("/v1"), path)
        try:
            limit = self.gateway.config.server.max_body_bytes
            body = await read_body(scope, receive, limit) if method not in ("GET", "HEAD") else b""
        except ClientGone:
            return
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        request = Request(method, path, parts, query, scope["headers"], body, scope[SCOPE_KEY])
        await until_gone(_run(handler, request, ASGIClient(send)), receive)

    def _handler(self, method: str, path: str, whole: str) -> tuple[Handler, tuple[str, ...]]:
        allowed = []
        for known, pattern, handler in self._rows:
            if (found := pattern.fullmatch(path)) is None:
                continue
            if known == method or (known == "GET" and method == "HEAD"):
                return handler, found.groups()
            allowed.append(known)
        if allowed:
            raise MethodNotAllowed(f"{method} {whole}", allowed)
        raise ProviderInvalidRequest(f"{method} {whole}: no such endpoint", code="not_found", status=404)

    def error_body(self, error: GatewayError) -> bytes:
        return encode(error.body())

    async def aclose(self) -> None:
        """Holds nothing."""


async def _run(handler: Handler, request: Request, client: Client) -> None:
    await handler(request, client)


async def json(client: Client, body: object, headers: Headers = ()) -> None:
    await client.whole(200, (JSON_TYPE, *headers), encode(body))


def told(count: TokenCount) -> Headers:
    """Says so where a count of tokens is an estimate."""
    return () if count.exact else ((b"x-ctxgate-estimate", b"true"),)


def without(tools: Iterable[str]) -> Headers:
    """Names the kinds of tools that the model was not shown, since nobody here could run them."""
    kinds = _UNSENDABLE.sub("?", ", ".join(sorted(set(tools))))[:MAX_KINDS]
    return ((b"x-ctxgate-dropped-tools", kinds.encode()),) if kinds else ()


class Encoding(Protocol):
    """A stream in the making: chat payloads to the bytes of another API."""

    def opening(self) -> bytes: ...

    def feed(self, payloads: list[bytes]) -> bytes: ...

    async def finish(self) -> bytes: ...

    def fail(self, error: GatewayError) -> bytes:
        """The stream's last frames, after an error that came too late for a status."""
        ...


async def stream(
    gateway: Gateway,
    request: ChatRequest,
    encoding: Encoding,
    client: Client,
) -> None:
    """Answers with server-sent events. An error before anything was sent is raised; after it, a frame of the stream."""
    server = gateway.config.server
    after, silence = server.progress_after_seconds, server.keep_alive_seconds
    if not server.progress_comments:
        after = silence = FOREVER
    pulse = KeepAlive(client, request.where, progress_after=after, keep_alive=silence)
    try:
        with await gateway.chat(request) as run:
            payloads = await run.payloads()
            await pulse.speak((*SSE_HEADERS, *stand_in(run)))
            await client.write(encoding.opening())
            while payloads:
                if frames := encoding.feed(payloads):
                    if pulse.busy:
                        await pulse.rest()
                    await client.write(frames)
                payloads = await run.payloads()
        last = await encoding.finish()
    except GatewayError as error:
        if not pulse.started:
            raise
        last = encoding.fail(error)
    except Exception:
        if not pulse.started:
            raise
        log.exception("a stream of model %s broke", request.model)
        last = encoding.fail(INTERNAL)
    finally:
        pulse.close()
    await pulse.rest()
    await client.end(last)


async def lines(gateway: Gateway, request: ChatRequest, encoding: Encoding, client: Client, kind: bytes) -> None:
    """As `stream`, for a format of lines, which has no comments."""
    started = False
    try:
        with await gateway.chat(request) as run:
            payloads = await run.payloads()
            started = True
            await client.start(((b"content-type", kind), *stand_in(run)))
            while payloads:
                if frames := encoding.feed(payloads):
                    await client.write(frames)
                payloads = await run.payloads()
        last = await encoding.finish()
    except GatewayError as error:
        if not started:
            raise
        last = encoding.fail(error)
    except Exception:
        if not started:
            raise
        log.exception("a stream of model %s broke", request.model)
        last = encoding.fail(INTERNAL)
    await client.end(last)

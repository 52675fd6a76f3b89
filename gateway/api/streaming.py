"""One loop for every streamed answer: payloads in, the bytes of an API out."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Protocol

from gateway.config import Server
from gateway.core import Gateway, Run
from gateway.errors import GatewayError
from gateway.request.token_estimate import TokenCount
from gateway.server.asgi import Headers, Receive, Scope, Send
from gateway.server.client import INTERNAL, ASGIClient, Client
from gateway.server.keepalive import SSE_HEADERS, KeepAlive
from gateway.wire import sse
from gateway.wire.chat import ChatRequest, encode, with_tier
from gateway.wire.pieces import Piece, pieces
from gateway.wire.sse import Sink

FOREVER = 1e8
"""Seconds until a comment that never comes."""
MAX_HEADER = 1000
"""The longest header of dropped tools, in characters: clients choose their names."""
NDJSON: Headers = ((b"content-type", b"application/x-ndjson"),)

log = logging.getLogger("ctxgate")
_UNPRINTABLE = re.compile("[^ -~]")


class Source(Protocol):
    async def payloads(self) -> list[bytes]:
        """The next payloads, at least one; [] at the end. Raises GatewayError."""
        ...

    def push_to(self, sink: Sink) -> None:
        """Lets payloads take a shortcut to the client while `payloads` waits, if the source has one."""
        ...


Opened = tuple[Source, Callable[[], Headers]]
"""A source and the headers that it adds, asked for once the first payload came."""


class Encoding(Protocol):
    """Turns the payloads of one answer into the bytes of an API's stream.

    headers: of the stream. comments: whether the format has comments, which keep a silent stream alive. ping: an event
    of the format that means nothing, to go with each comment; b"" if it has none. unchanged: the payloads leave as they
    are, so that they may take the shortcut.
    """

    headers: Headers
    comments: bool
    ping: bytes

    @property
    def unchanged(self) -> bool: ...

    def opening(self) -> bytes: ...

    def feed(self, payloads: list[bytes]) -> bytes: ...

    async def finish(self) -> bytes: ...

    async def fail(self, error: GatewayError) -> bytes:
        """The last bytes of a stream that has begun and fails."""
        ...


class StreamedAnswer:
    """A streamed answer. An error before the first byte is raised; a later one becomes the stream's last event.

    progress: the text of comments while the answer has not begun.
    """

    def __init__(
        self,
        source: AbstractAsyncContextManager[Opened],
        encoding: Encoding,
        server: Server,
        progress: Callable[[], str] = str,
    ) -> None:
        self._source = source
        self._encoding = encoding
        self._server = server
        self._progress = progress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.send(ASGIClient(send))

    async def send(self, client: Client) -> None:
        encoding = self._encoding
        keepalive = self._comments(client)
        try:
            async with self._source as opened:
                await self._forward(opened, client, keepalive)
            last = await encoding.finish()
        except GatewayError as error:
            if not keepalive.started:
                raise
            last = await encoding.fail(error)
        except Exception:
            if not keepalive.started:
                raise
            log.exception("a stream broke")
            last = await encoding.fail(INTERNAL)
        finally:
            keepalive.close()
        if keepalive.busy:
            await keepalive.settle()
        await client.end(last)

    async def _forward(self, opened: Opened, client: Client, keepalive: KeepAlive) -> None:
        source, headers = opened
        encoding = self._encoding
        payloads = await source.payloads()
        head = (*encoding.headers, *headers())
        await keepalive.begin(head, encoding.opening() + encoding.feed(payloads))
        if encoding.unchanged and (sink := client.sink()) is not None:
            source.push_to(sink)
        while payloads and (payloads := await source.payloads()):
            if data := encoding.feed(payloads):
                if keepalive.busy:
                    await keepalive.settle()
                await client.write(data)

    def _comments(self, client: Client) -> KeepAlive:
        server = self._server
        after, silence = server.progress_after_seconds, server.keep_alive_seconds
        if not (server.progress_comments and self._encoding.comments):
            after = silence = FOREVER
        ping = self._encoding.ping
        return KeepAlive(client, self._progress, progress_after=after, keep_alive=silence, ping=ping)


def chat_stream(gateway: Gateway, request: ChatRequest, encoding: Encoding) -> StreamedAnswer:
    """The answer to a chat, as the API of `encoding` streams it."""
    return StreamedAnswer(_Chat(gateway, request), encoding, gateway.config.server, request.serving.describe_now)


class _Chat:
    """The source of a chat's answer. A class, for the hot path: `asynccontextmanager` would cost six times as much."""

    __slots__ = ("_asked", "_run")
    _run: Run

    def __init__(self, gateway: Gateway, request: ChatRequest) -> None:
        self._asked = gateway, request

    async def __aenter__(self) -> Opened:
        gateway, request = self._asked
        self._run = run = await gateway.chat(request)
        return run, self._headers

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run.__exit__(kind, error, trace)
        del self._asked, self._run  # what was asked may be long, and storing the answer may take a while

    def _headers(self) -> Headers:
        return extra_headers(self._run)


def extra_headers(run: Run) -> Headers:
    """The model that answers, if it isn't the one that was asked, and the changes to the request's messages. A chat's
    stream also says both in the `ctxgate` field of its last chunk."""
    fallback = run.request.fallback
    headers: Headers = () if fallback is None else ((b"x-ctxgate-fallback", fallback.encode()),)
    if healed := run.answer.report.healed:
        counts = ", ".join(f"{kind}={count}" for kind, count in healed.items())
        return (*headers, (b"x-ctxgate-healed", counts.encode()))
    return headers


class Encoder(Protocol):
    """Turns the pieces of one answer into the events, or lines, of an API."""

    def opening(self) -> list[Any]: ...

    def feed(self, pieces: Iterable[Piece]) -> list[Any]: ...

    def finish(self) -> list[Any]: ...

    def fail(self, error: GatewayError) -> list[Any]: ...


class EventEncoding:
    """Server-sent events, each named by its `type`."""

    headers: Headers = SSE_HEADERS
    comments = True
    ping = b""
    unchanged = False

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def write(self, events: list[Any]) -> bytes:
        return write_events(events)

    def opening(self) -> bytes:
        return self.write(self._encoder.opening())

    def feed(self, payloads: list[bytes]) -> bytes:
        return b"".join([self.write(self._encoder.feed(pieces(payload))) for payload in payloads])

    async def finish(self) -> bytes:
        return self.write(self._encoder.finish())

    async def fail(self, error: GatewayError) -> bytes:
        return self.write(self._encoder.fail(error))


class LineEncoding(EventEncoding):
    """JSON lines, a format without comments."""

    comments = False

    def __init__(self, encoder: Encoder, headers: Headers = ()) -> None:
        """headers: of the stream, besides its type."""
        super().__init__(encoder)
        self.headers = (*NDJSON, *headers)

    def write(self, events: list[Any]) -> bytes:
        return b"".join([encode(event) + b"\n" for event in events])


class Tiered(Protocol):
    @property
    def tier(self) -> str | None:
        """The request's service tier, final once its source is open; None: the answer names none."""
        ...


class PayloadEncoding:
    """OpenAI's chunks, unchanged but for the service tier that each names if the request has one; and the end mark."""

    headers = SSE_HEADERS
    comments = True
    ping = b""

    def __init__(self, tiered: Tiered) -> None:
        self._tiered = tiered

    @property
    def unchanged(self) -> bool:
        return self._tiered.tier is None

    def opening(self) -> bytes:
        return b""

    def feed(self, payloads: list[bytes]) -> bytes:
        tier = self._tiered.tier
        return sse.events(payloads if tier is None else [with_tier(payload, tier) for payload in payloads])

    async def finish(self) -> bytes:
        return sse.DONE

    async def fail(self, error: GatewayError) -> bytes:
        return sse.event(encode(error.body())) + sse.DONE


class FunctionsEncoding(PayloadEncoding):
    """Chunks for a client that speaks of `functions` instead of tools."""

    unchanged = False

    def feed(self, payloads: list[bytes]) -> bytes:
        from gateway.wire.rare import old_chunk

        return super().feed([old_chunk(payload) for payload in payloads])


def write_events(events: Iterable[Mapping[str, Any]]) -> bytes:
    """Server-sent events, each named by its `type`."""
    return b"".join([sse.named(event["type"], encode(event)) for event in events])


def estimate_header(count: TokenCount) -> Headers:
    """The header that marks an estimated count of tokens."""
    return () if count.exact else ((b"x-ctxgate-estimate", b"true"),)


def dropped_header(name: bytes, kinds: Iterable[str]) -> Headers:
    """The header that names the kinds of tools, of items, or of options, that the model doesn't get."""
    named = _UNPRINTABLE.sub("?", ", ".join(sorted(set(kinds))))[:MAX_HEADER]
    return ((name, named.encode()),) if named else ()

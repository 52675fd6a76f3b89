"""The SDK's client for streamable HTTP, with bounds on what a server may send."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx2

from gateway.features.agents.tools.mcp.results import MAX_VALUES, too_many_values

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

MAX_BYTES = 4 * 1024 * 1024
"""Bytes of one answer."""


MAX_EVENTS = 1000
"""Events of one answer: a notification takes a millisecond, and a ping is answered by a request."""

EVENT_ENDS = (b"\n\n", b"\r\r", b"\r\n\r\n")


class _Counted(httpx2.AsyncByteStream):
    """Passes on an answer once it is whole, or an event of it, since whoever gets it parses it at once."""

    def __init__(self, stream: httpx2.AsyncByteStream, kind: str) -> None:
        self._stream = stream
        self._ends = EVENT_ENDS if kind.startswith("text/event-stream") else ()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left, events, held = MAX_BYTES, MAX_EVENTS, bytearray()
        async for chunk in self._stream:
            left -= len(chunk)
            if left < 0:
                raise httpx2.ReadError(f"the answer has over {MAX_BYTES} bytes")
            new = held[-3:] + chunk
            held += chunk
            if any(end in new for end in self._ends):
                events -= sum(held.count(end) for end in self._ends)
                if events < 0:
                    raise httpx2.ReadError(f"the answer has over {MAX_EVENTS} events")
                yield _checked(held)
                held.clear()
        yield _checked(held)

    async def aclose(self) -> None:
        await self._stream.aclose()


def _checked(held: bytearray) -> bytes:
    if too_many_values(held):
        raise httpx2.ReadError(f"the answer has over {MAX_VALUES} values")
    return bytes(held)


class _Bounded(httpx2.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            # A stream of unsolicited messages, which nothing here would read.
            return httpx2.Response(405)
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.ReadError("the answer is compressed, which nobody asked for")
        if b'"method"' not in await request.aread():
            # It got an answer of ours, to a ping, and has nothing to say to that.
            await response.aclose()
            return httpx2.Response(response.status_code, headers={"content-length": "0"})
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Counted(response.stream, response.headers.get("content-type", ""))
        return response


@asynccontextmanager
async def connect(url: str, headers: Mapping[str, str], seconds: float) -> AsyncIterator[TransportStreams]:
    """The streams of a server. seconds: the most between two parts of an answer."""
    from mcp.client.streamable_http import streamable_http_client

    client = httpx2.AsyncClient(
        headers={**headers, "accept-encoding": "identity"},
        timeout=httpx2.Timeout(10.0, read=seconds),
        transport=_Bounded(),
        trust_env=False,
    )
    async with client, streamable_http_client(url, http_client=client, max_sse_event_size=MAX_BYTES) as streams:
        yield streams

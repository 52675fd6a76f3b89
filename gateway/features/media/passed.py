"""A request that a model's server gets as it is, and the answer that the client gets as it is."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct

from gateway.backends import Forward, Forwarded
from gateway.core import Route
from gateway.core.passthrough import RequestMeter
from gateway.core.permission import check, tier_of
from gateway.observe.request_log import OK, outcome_of
from gateway.server.asgi import Headers, Receive, Scope, Send
from gateway.wire.chat import ApiName, Caller, Wanted

GUARDS = ((b"x-content-type-options", b"nosniff"), (b"content-security-policy", b"sandbox"))
"""No browser shows an answer as a page of the gateway, whose scripts could then use it."""
TAIL = 4096
"""Bytes at the end of an answer that hold its usage."""
SECONDS = b"ctxgate-sound-seconds"
_NUMBER = re.compile(rb"\d{1,9}(\.\d{1,9})?")
_SECONDS = re.compile(rb'"seconds" ?: ?(\d{1,9}(?:\.\d{1,9})?)[,}\s]')
_DURATION = re.compile(rb'"duration" ?: ?(\d{1,9}(?:\.\d{1,9})?)[,}\s]')
KEPT = (b"content-type", b"content-length", b"content-disposition", b"cache-control")


class Asked(Struct, frozen=True):
    """What the client asked of which model.

    named: the model name in the request. usage: what the request log counts, once the answer has come.
    """

    route: Route
    api: ApiName
    caller: Caller
    named: str | None = None
    tier: Wanted | None = None
    stream: bool = False
    usage: Mapping[str, Any] = {}


@asynccontextmanager
async def forwarded(asked: Asked, sent: Forward) -> AsyncIterator[tuple[Forwarded, RequestMeter]]:
    """The answer of the model's server. Starts the engine if need be, which stays up meanwhile.

    Logs the request, with any error while the answer is read as its outcome. Raises what `Engine.join` and
    `Backend.forward` raise, and ProviderAuthentication (403) if the caller may not use the model.
    """
    route = asked.route
    check(route.model, asked.caller)
    tier = tier_of(route.model, asked.caller, asked.named, asked.tier)
    meter = route.count(asked.api, asked.caller, stream=asked.stream)
    try:
        async with route.use(tier) as backend:
            answer = await backend.forward(sent)
            try:
                yield answer, meter
            finally:
                answer.close()
    except BaseException as error:
        meter.end(outcome_of(error))
        raise
    else:
        meter.usage = {**asked.usage, **meter.usage}
        meter.end(OK)


class Passed:
    """Sends the request on and the answer back, at the pace of the slower side; an ASGI application.

    ended: called once the request has been answered, or given up.
    """

    def __init__(self, asked: Asked, sent: Forward, ended: Callable[[], None] = lambda: None) -> None:
        self._asked = asked
        self._sent = sent
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with forwarded(self._asked, self._sent) as (answer, meter):
                await send(
                    {"type": "http.response.start", "status": answer.status, "headers": [*_headers(answer), *GUARDS]}
                )
                last = b""
                while scope["method"] != "HEAD" and (piece := await answer.receive()):
                    if self._asked.stream:
                        meter.came(1)
                    last = (last + piece)[-TAIL:]
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                if self._asked.api == "audio" and (seconds := sound_seconds(answer.headers, last)) is not None:
                    meter.usage = {"sound_seconds": seconds}
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._ended()


def sound_seconds(headers: Mapping[bytes, bytes], last: bytes) -> float | None:
    """How much sound was heard: as the gateway's own engine says in a header, others in a usage or a duration of JSON.

    last: the end of the answer. None if nothing tells.
    """
    if b"json" not in headers.get(b"content-type", b"") and b"event-stream" not in headers.get(b"content-type", b""):
        written = headers.get(SECONDS, b"")
    else:
        found = _SECONDS.findall(last) or _DURATION.findall(last)
        written = found[-1] if found else b""
    return float(written) if _NUMBER.fullmatch(written) else None


def _headers(answer: Forwarded) -> Headers:
    return [(name, value) for name in KEPT if (value := answer.headers.get(name)) is not None]

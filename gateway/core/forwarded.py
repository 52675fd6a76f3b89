"""A request that a model's server gets as it is, and its answer."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager

from msgspec import Struct

from gateway.backends import Forward, Forwarded
from gateway.core.passthrough import RequestMeter
from gateway.core.route import Route
from gateway.errors import ProviderInvalidResponse
from gateway.observe.request_log import OK, outcome_of
from gateway.wire.chat import NOBODY, ApiName, Caller
from gateway.wire.limits import Tier

TAIL = 4096
"""Bytes at the end of an answer that hold its usage."""
SECONDS = b"ctxgate-sound-seconds"
_NUMBER = re.compile(rb"\d{1,9}(\.\d{1,9})?")
_SECONDS = re.compile(rb'"seconds" ?: ?(\d{1,9}(?:\.\d{1,9})?)[,}\s]')
_DURATION = re.compile(rb'"duration" ?: ?(\d{1,9}(?:\.\d{1,9})?)[,}\s]')


class Asked(Struct, frozen=True):
    """What a client asked of which model.

    usage: what the request log counts, once the answer has come. hears: the answer may tell how much sound was heard.
    """

    route: Route
    api: ApiName
    caller: Caller = NOBODY
    tier: Tier | None = None
    stream: bool = False
    usage: Mapping[str, float] = {}
    hears: bool = False


@asynccontextmanager
async def forwarded(asked: Asked, sent: Forward) -> AsyncIterator[tuple[Forwarded, RequestMeter]]:
    """The answer of the model's server. Starts the engine if need be, which stays up meanwhile.

    Logs the request, with any error while the answer is read as its outcome. Raises what `Engine.join` and
    `Backend.forward` raise.
    """
    route = asked.route
    meter = route.count(asked.api, asked.caller, stream=asked.stream)
    try:
        async with route.use(asked.tier) as backend:
            answer = await backend.forward(sent)
            try:
                yield answer, meter
            finally:
                answer.close()
    except BaseException as error:
        meter.end(outcome_of(error))
        raise
    else:
        meter.uses(asked.usage)
        meter.end(OK)


async def pieces(asked: Asked, answer: Forwarded, meter: RequestMeter) -> AsyncGenerator[bytes, None]:
    """What comes of the answer. At its end, the meter knows the seconds of sound that were heard, if it tells them."""
    last = b""
    while piece := await answer.receive():
        if asked.stream:
            meter.came(1)
        if asked.hears:
            last = (last + piece)[-TAIL:]
        yield piece
    if asked.hears and (seconds := sound_seconds(answer.headers, last)) is not None:
        meter.uses({"sound_seconds": seconds})


async def whole(asked: Asked, sent: Forward, most: int) -> bytes:
    """The whole answer. Raises as `forwarded` does, and ProviderInvalidResponse for more than `most` bytes."""
    found: list[bytes] = []
    async with forwarded(asked, sent) as (answer, meter):
        async for piece in pieces(asked, answer, meter):
            found.append(piece)
            if (most := most - len(piece)) < 0:
                raise ProviderInvalidResponse("the engine's answer is too long")
    return b"".join(found)


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

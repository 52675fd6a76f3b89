"""A request that a model's server gets as it is, and its answer."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from gateway.backends import Backend, Forward, Forwarded
from gateway.config.hidden import SHORT, hider
from gateway.core.passthrough import RequestMeter
from gateway.core.route import Route
from gateway.errors import ProviderInvalidResponse
from gateway.observe.request_log import OK, outcome_of
from gateway.wire.chat import NOBODY, ApiName, Caller, encode
from gateway.wire.limits import Tier

BEGIN = TAIL = 4096
"""Bytes at the beginning and at the end of an answer that hold its duration, its usage or its error."""
SECONDS = b"ctxgate-sound-seconds"
_NUMBER = re.compile(rb"\d{1,9}(\.\d{1,20})?")
_SECONDS = re.compile(rb'"seconds" ?: ?(\d{1,9}(?:\.\d{1,20})?)[,}\s]')
_DURATION = re.compile(rb'"duration" ?: ?(\d{1,9}(?:\.\d{1,20})?)[,}\s]')


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

    Logs the request, with any error while the answer is read as its outcome. Raises what `EngineRequests.join` and
    `Backend.forward` raise, and the error that a 200 contains, such as whisper.cpp's.
    """
    route = asked.route
    meter = route.count(asked.api, asked.caller, stream=asked.stream)
    try:
        async with route.use(asked.tier) as backend:
            shared = sent.owner is not None and route.sender.is_shared(asked.caller)
            answer = await backend.forward(_unreused(sent) if shared and not backend.separates else sent)
            try:
                yield await (_quoted(asked, answer) if sent.verbatim else _checked(asked, answer, backend)), meter
            finally:
                answer.close()
    except BaseException as error:
        meter.end(outcome_of(error))
        raise
    else:
        meter.uses(asked.usage)
        meter.end(OK)


def _unreused(sent: Forward) -> Forward:
    """A prompt of one of several owners, for a server that would reuse anybody's for it, and tell how much."""
    if not isinstance(sent.body, bytes):
        return sent
    fields = msgspec.json.decode(sent.body, type=dict[str, Raw])
    fields.pop("id_slot", None)
    return replace(sent, body=encode({**fields, "cache_prompt": Raw(b"false")}))


class _Begun:
    """An answer whose beginning has been read."""

    def __init__(self, answer: Forwarded, begin: bytes, headers: Mapping[bytes, bytes] | None = None) -> None:
        """headers: None for those of the answer."""
        self.status, self.close = answer.status, answer.close
        self.headers = answer.headers if headers is None else headers
        self._answer = answer
        self._begin = begin

    async def receive(self) -> bytes:
        begin, self._begin = self._begin, b""
        return begin or await self._answer.receive()


class _Refusal(_Begun):
    """One of which nothing more comes."""

    async def receive(self) -> bytes:
        begin, self._begin = self._begin, b""
        return begin


async def _quoted(asked: Asked, answer: Forwarded) -> Forwarded:
    """The answer; the beginning of a refusal, and no more, without the model's secrets: servers quote keys that they
    refuse."""
    if answer.status < 400 or not asked.route.model.secrets:
        return answer
    said = b""
    while len(said) < SHORT and (piece := await answer.receive()):
        said += piece
    told = hider(asked.route.model.secrets)(said[:SHORT].decode("utf-8", "surrogateescape"))
    headers = {name: value for name, value in answer.headers.items() if name != b"content-length"}
    return _Refusal(answer, told.encode("utf-8", "surrogateescape"), headers)


async def _checked(asked: Asked, answer: Forwarded, backend: Backend) -> Forwarded:
    """The answer, unless it is an error."""
    if b"json" not in answer.headers.get(b"content-type", b""):
        return answer
    begin = b""
    while len(begin) < BEGIN and (piece := await answer.receive()):
        begin += piece
    if len(begin) < BEGIN and _is_error(begin):
        # What was wrong is the sound: whisper.cpp says 500 of its own failures.
        raise backend.fault(400 if asked.hears else 500, begin)
    return _Begun(answer, begin)


def _is_error(body: bytes) -> bool:
    if b'"error"' not in body:
        return False
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(found, dict) and bool(found.get("error"))


async def pieces(asked: Asked, answer: Forwarded, meter: RequestMeter) -> AsyncGenerator[bytes, None]:
    """What comes of the answer. At its end, the meter knows the seconds of sound that were heard, if it tells them."""
    first = last = b""
    while piece := await answer.receive():
        if asked.stream:
            meter.came(1)
        if asked.hears:
            first += piece[: BEGIN - len(first)]
            last = (last + piece)[-TAIL:]
        yield piece
    if asked.hears and (seconds := sound_seconds(answer.headers, first, last)) is not None:
        meter.uses({"sound_seconds": seconds})


async def whole(asked: Asked, sent: Forward, maximum: int) -> bytes:
    """The whole answer. Raises as `forwarded` does, and ProviderInvalidResponse for more than `maximum` bytes."""
    found: list[bytes] = []
    async with forwarded(asked, sent) as (answer, meter):
        async for piece in pieces(asked, answer, meter):
            found.append(piece)
            if (maximum := maximum - len(piece)) < 0:
                raise ProviderInvalidResponse("the engine's answer is too long")
    return b"".join(found)


def sound_seconds(headers: Mapping[bytes, bytes], first: bytes, last: bytes) -> float | None:
    """How much sound was heard: as the gateway's own engine says in a header, others in a usage or a duration of JSON.

    first, last: the beginning and the end of the answer. None if nothing tells.
    """
    if b"json" not in headers.get(b"content-type", b"") and b"event-stream" not in headers.get(b"content-type", b""):
        written = headers.get(SECONDS, b"")
    else:
        found = _SECONDS.findall(last)[-1:] or _DURATION.findall(first) or _DURATION.findall(last)[-1:]
        written = found[0] if found else b""
    return float(written) if _NUMBER.fullmatch(written) else None

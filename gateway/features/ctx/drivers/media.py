"""`openai-transcriptions`, `openai-speech` and `openai-images`: a model that hears, speaks or draws."""

from __future__ import annotations

import asyncio
import binascii
from base64 import b64decode
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from msgspec import Raw, Struct

from gateway.backends import Forward, Forwarded
from gateway.config import Role
from gateway.core import Gateway, Route
from gateway.core.in_thread import in_thread_if_large
from gateway.errors import ProviderInvalidRequest, ProviderInvalidResponse, ProviderUnavailable
from gateway.features.ctx.drivers.base import Ask, NotOffered
from gateway.features.ctx.errors import TooLong
from gateway.features.ctx.events import AnswerTooLong, Event, EventWriter, Media
from gateway.features.media.forwarded import Asked, forwarded, pieces, whole
from gateway.features.media.requests import texts
from gateway.features.media.uploads import form
from gateway.features.media.wire.sounds import transcript
from gateway.wire.chat import decode, encode
from gateway.wire.sse import EventTooLarge, SSEReader

MAX_PICTURE = 64 * 1024 * 1024
"""Bytes of an answer with a picture in base64."""
MAX_TRANSCRIPT = 8 * 1024 * 1024
"""Bytes of a transcription that doesn't stream. A day of speech has about 1.5 million."""
SPEECH_FORMAT = Raw(b'"wav"')
"""What every player takes, for a request that names no format."""

Events = AsyncGenerator[list[Event], None]


class OpenAITranscriptions:
    async def open(self, gateway: Gateway, ask: Ask) -> Coming:
        route = _route(gateway, ask, "transcription")
        if ask.upload is None:
            raise ProviderInvalidRequest("the input is sound: one file, with -f or on standard input")
        fields = _fields(route, ask, {"response_format": Raw(b'"json"'), "stream": Raw(b"true")})
        sent = form("/v1/audio/transcriptions", texts(fields).items(), ask.upload)
        return Coming(_heard(Asked(route, "ctx", stream=True, hears=True), sent, EventWriter(ask.run, ask.limit)))


class OpenAISpeech:
    async def open(self, gateway: Gateway, ask: Ask) -> Coming:
        route = _route(gateway, ask, "speech")
        fields = _fields(route, ask, {"response_format": SPEECH_FORMAT})
        usage = {"characters": len(str(ask.fields.get("input", "")))}
        sent = Forward("POST", "/v1/audio/speech", "application/json", encode(fields))
        return Coming(_spoken(Asked(route, "ctx", stream=True, usage=usage), sent, ask.run))


class OpenAIImages:
    async def open(self, gateway: Gateway, ask: Ask) -> Coming:
        route = _route(gateway, ask, "image")
        fields = _fields(route, ask, {"response_format": Raw(b'"b64_json"')}) | {"n": Raw(b"1")}
        sent = Forward("POST", "/v1/images/generations", "application/json", encode(fields))
        return Coming(_drawn(Asked(route, "ctx", usage={"pictures": 1}), sent, ask.run))


class Coming:
    """An answer that a generator gives."""

    cut = False

    def __init__(self, events: Events) -> None:
        self._events = events
        self._closing: asyncio.Future[None] | None = None

    async def events(self) -> list[Event]:
        return await anext(self._events, [])

    def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._events.aclose())


def _route(gateway: Gateway, ask: Ask, role: Role) -> Route:
    if ask.model is None or ask.model.role != role:
        raise NotOffered(f"the model is not for {role}")
    return gateway.route(ask.model.name, role)


def _fields(route: Route, ask: Ask, unless_given: dict[str, Raw]) -> dict[str, Raw]:
    given = unless_given | {name: Raw(encode(value)) for name, value in ask.fields.items()}
    return route.sender.other_fields(given) | {"model": Raw(encode(route.model.upstream_name))}


class _Heard(Struct):
    type: str = ""
    delta: str = ""


async def _heard(asked: Asked, sent: Forward, writer: EventWriter) -> Events:
    """A server that doesn't stream answers with one JSON object."""
    async with forwarded(asked, sent) as (answer, meter):
        streams = b"event-stream" in answer.headers.get(b"content-type", b"")
        reader, body, ended = SSEReader(), bytearray(), not streams
        async for piece in pieces(asked, answer, meter):
            if not streams:
                body += piece
                if len(body) > MAX_TRANSCRIPT:
                    raise ProviderInvalidResponse(f"a transcription of more than {MAX_TRANSCRIPT} bytes")
                continue
            try:
                for event in reader.feed(piece):
                    heard = msgspec.json.decode(event, type=_Heard)
                    ended = ended or heard.type == "transcript.text.done"
                    _write(writer, heard.delta)
            except (EventTooLarge, msgspec.MsgspecError) as error:
                raise ProviderInvalidResponse(f"a transcription can't be read: {error}") from error
            if events := writer.take():
                yield events
        if not ended:
            raise ProviderUnavailable("the engine's stream ended before the answer did", status=502)
        if not streams:
            _write(writer, transcript(bytes(body)))
    yield writer.finish()


def _write(writer: EventWriter, text: str) -> None:
    if text:
        try:
            writer.text(text)
        except AnswerTooLong as error:
            raise TooLong(str(error)) from None


async def _spoken(asked: Asked, sent: Forward, run: str) -> Events:
    async with forwarded(asked, sent) as (answer, meter):
        kind = _kind(answer)
        async for piece in pieces(asked, answer, meter):
            yield [Media(run=run, content_type=kind, data=piece)]


async def _drawn(asked: Asked, sent: Forward, run: str) -> Events:
    body = await whole(asked, sent, MAX_PICTURE)
    yield [Media(run=run, content_type="image/png", data=await in_thread_if_large(len(body), _picture, body))]


def _picture(body: bytes) -> bytes:
    try:
        found: Any = decode(body)
        return b64decode(found["data"][0]["b64_json"], validate=True)
    except (ValueError, KeyError, IndexError, TypeError, RecursionError, binascii.Error) as error:
        raise ProviderInvalidResponse(f"the engine's answer has no picture: {error}") from error


def _kind(answer: Forwarded) -> str:
    return answer.headers.get(b"content-type", b"application/octet-stream").decode("latin-1")

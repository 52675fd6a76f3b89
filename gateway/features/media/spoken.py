"""Chats that want a spoken answer: `modalities: ["text", "audio"]`, of a model with `speak_with`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from msgspec import Raw

from gateway.api.streaming import Opened, PayloadEncoding, StreamedAnswer, extra_headers
from gateway.core import Gateway, Run
from gateway.core.in_thread import in_thread_if_large
from gateway.features.media.speaker import Memory, Spoken
from gateway.features.media.wire.spoken import in_text, voice_of, wants_sound
from gateway.server.asgi import Headers
from gateway.server.client import JSON_TYPE, Client
from gateway.wire.chat import Caller, ChatRequest, with_tier
from gateway.wire.nulls import read_fields


class SpokenChats:
    """See `gateway.api.chat.SpokenChats`. Remembers what was said, so that a conversation can name it."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._memory = Memory()

    async def answer(self, body: bytes, client: Client, caller: Caller) -> bool:
        """Answers a chat that wants sound. False: it wants none, or its model has no `speak_with`."""
        gateway = self._gateway
        if (asked := await in_thread_if_large(len(body), _read, body, self._memory.of(caller), caller)) is None:
            return False
        fields, request = asked
        speaker = gateway.route(request.model, "chat").model.speak_with
        if speaker is None:
            return False
        spoken = Spoken(request, gateway.route(speaker, "speech"), voice_of(fields), self._memory)
        if request.stream:
            await _stream(gateway, request, spoken, speaker).send(client)
            return True
        with await gateway.chat(request) as run:
            whole = await run.whole()
            headers = _headers(run, speaker)
        made = await spoken.whole(whole)
        if request.serving.tier is not None:
            made = with_tier(made, request.serving.tier)
        await client.whole(200, (JSON_TYPE, *headers), made)
        return True


def _read(body: bytes, said: Mapping[str, str], caller: Caller) -> tuple[dict[str, Raw], ChatRequest] | None:
    """The fields, and the request for the text alone; None if it wants no sound."""
    fields, _ = read_fields(body)
    return (fields, ChatRequest.parse(in_text(fields, said), "chat", caller)) if wants_sound(fields) else None


def _stream(gateway: Gateway, request: ChatRequest, spoken: Spoken, speaker: str) -> StreamedAnswer:
    @asynccontextmanager
    async def source() -> AsyncIterator[Opened]:
        run = await gateway.chat(request)
        async with spoken.streaming(run):
            yield spoken, lambda: _headers(run, speaker)

    return StreamedAnswer(
        source(), PayloadEncoding(request.serving), gateway.config.server, request.serving.describe_now
    )


def _headers(run: Run, speaker: str) -> Headers:
    return (*extra_headers(run), (b"x-ctxgate-spoken-by", speaker.encode()))

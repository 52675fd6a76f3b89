"""Answers of a chat model that another model speaks: whole, or sentence by sentence while the text comes."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing, asynccontextmanager
from typing import NamedTuple

from msgspec import Raw

from gateway.backends import Forward
from gateway.core.in_thread import in_thread_if_large
from gateway.core.route import Route
from gateway.core.run import Run
from gateway.errors import GatewayError, InternalError
from gateway.features.media.forwarded import Asked, forwarded, pieces, whole
from gateway.features.media.wire.spoken import KEPT_SECONDS, Sentences, SpokenStream, Voice, text_of, whole_answer
from gateway.wire.chat import Caller, ChatRequest, encode
from gateway.wire.sse import Sink

MAX_SOUND = 64 * 1024 * 1024
"""Bytes of the sound of a whole answer."""
MAX_SAID = 256
"""Answers to one caller whose texts are remembered."""
AHEAD = 16
"""Chunks that may wait for a slow client."""

log = logging.getLogger("ctxgate")


class Said(NamedTuple):
    """An answer that was spoken. until: by time.time."""

    text: str
    until: int


class Memory:
    """The texts of spoken answers: clients send the id of the sound in place of the text."""

    def __init__(self) -> None:
        self._said: dict[str, OrderedDict[str, Said]] = {}
        """By whom it was said to, the oldest first: nobody's answers take the place of another's."""

    def of(self, caller: Caller) -> dict[str, str]:
        """What was said to the caller, by id."""
        self._forget()
        return {id: said.text for id, said in self._said.get(_owner(caller), {}).items()}

    def keep(self, id: str, text: str, caller: Caller) -> int:
        """Returns when it is forgotten, in seconds since 1970."""
        self._forget()
        until = int(time.time()) + KEPT_SECONDS
        own = self._said.setdefault(_owner(caller), OrderedDict())
        own[id] = Said(text, until)
        if len(own) > MAX_SAID:
            own.popitem(last=False)
        return until

    def _forget(self) -> None:
        now = time.time()
        for owner, own in [*self._said.items()]:
            while own and next(iter(own.values())).until < now:
                own.popitem(last=False)
            if not own:
                del self._said[owner]


def _owner(caller: Caller) -> str:
    return caller.owner or caller.key


class Spoken:
    """One answer to be spoken. Read it with `whole`; or its chunks with `payloads`, within `streaming`."""

    def __init__(self, request: ChatRequest, speaker: Route, voice: Voice, memory: Memory) -> None:
        """speaker: of the model that speaks."""
        self._request = request
        self._speaker = speaker
        self._voice = voice
        self._memory = memory
        self._id = f"audio_{secrets.token_hex(12)}"
        self._stream = SpokenStream(self._id)
        self._sentences: asyncio.Queue[str | None] = asyncio.Queue()
        """None at the end of the text. It holds no more than the answer: the text doesn't wait for the sound, since the
        engine's place is freed at its end."""
        self._coming: asyncio.Queue[bytes | GatewayError | None] = asyncio.Queue(AHEAD)
        """Chunks for the client; at the end an error or None."""

    async def whole(self, body: bytes) -> bytes:
        """body: the answer as text. Raises the error of the model that speaks."""
        text = text_of(body)
        if not text.strip():
            return body
        sound = await whole(self._asked(text), self._speech(text), MAX_SOUND)
        until = self._memory.keep(self._id, text, self._request.caller)
        return await in_thread_if_large(len(sound), whole_answer, body, self._id, until, sound)

    @asynccontextmanager
    async def streaming(self, run: Run) -> AsyncIterator[None]:
        """Closes the run."""
        working = [asyncio.create_task(self._guarded(work)) for work in (self._read(run), self._speak())]
        try:
            yield
        finally:
            for task in working:
                task.cancel()
            await asyncio.wait(working)
            run.close()

    async def payloads(self) -> list[bytes]:
        """The next chunks, at least one; [] at the end. Raises the error of either model."""
        came = await self._coming.get()
        if isinstance(came, GatewayError):
            raise came
        return [] if came is None else [came]

    def push_to(self, sink: Sink) -> None:
        """Does nothing: every chunk has to pass through here."""

    async def _guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
        except GatewayError as error:
            await self._coming.put(error)
        except Exception:
            log.exception("an answer could not be spoken")
            await self._coming.put(InternalError("ctxgate failed; its log tells why"))

    async def _read(self, run: Run) -> None:
        """Passes the text on as it comes, and its sentences to the speaker. Frees the engine's place at the end: the
        model that speaks may need its memory."""
        sentences = Sentences()
        with run:
            while payloads := await run.payloads():
                for payload in payloads:
                    chunks, text = self._stream.feed(payload)
                    for chunk in chunks:
                        await self._coming.put(chunk)
                    for sentence in sentences.feed(text):
                        self._sentences.put_nowait(sentence)
        for sentence in sentences.finish():
            self._sentences.put_nowait(sentence)
        self._sentences.put_nowait(None)

    async def _speak(self) -> None:
        while (sentence := await self._sentences.get()) is not None:
            asked, odd = self._asked(sentence), b""
            async with (
                forwarded(asked, self._speech(sentence)) as (spoken, meter),
                aclosing(pieces(asked, spoken, meter)) as sound,
            ):
                async for piece in sound:
                    odd += piece
                    even = len(odd) // 2 * 2  # whole samples
                    if even:
                        await self._coming.put(self._stream.sound(odd[:even]))
                    odd = odd[even:]
        until = self._memory.keep(self._id, self._stream.text, self._request.caller)
        for chunk in (*self._stream.end(until), None):
            await self._coming.put(chunk)

    def _asked(self, text: str) -> Asked:
        request = self._request
        tier = request.serving.tier if request.serving.tier != "auto" else None
        return Asked(self._speaker, "audio", request.caller, tier, request.stream, {"characters": len(text)})

    def _speech(self, text: str) -> Forward:
        given = {"input": text.strip(), "response_format": self._voice.response_format}
        if self._voice.name is not None:
            given["voice"] = self._voice.name
        fields = self._speaker.sender.other_fields({name: Raw(encode(value)) for name, value in given.items()})
        sent = fields | {"model": Raw(encode(self._speaker.model.upstream_name))}
        return Forward("POST", "/v1/audio/speech", "application/json", encode(sent))

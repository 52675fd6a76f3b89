"""Chats whose answers are spoken, in OpenAI's shape: `modalities`, `audio`, and sentences out of a stream of text."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Literal, cast, get_args

from msgspec import Raw, Struct

from gateway.errors import ProviderInvalidRequest
from gateway.wire.chat import decode, encode
from gateway.wire.conversation import Message

Json = dict[str, Any]

FIELDS = ("modalities", "audio")
Format = Literal["wav", "mp3", "flac", "opus", "aac", "pcm16"]
STREAMED: Format = "pcm16"
"""The only format whose pieces can be joined, and OpenAI's only one for streams."""
KEPT_SECONDS = 3600
"""How long a client may name a spoken answer by its id in place of its text."""
MIN_SENTENCE, MAX_SENTENCE = 24, 400
"""Characters: shorter sentences are spoken with the next one, longer ones in parts."""
_END = re.compile(r"[.!?…][\"')\]»”’]*\s|[。！？]|\n")
_PAUSE = re.compile(r"[,;:–—]\s|\s")


class Voice(Struct, frozen=True):
    """How an answer shall be spoken. name: None for the model's first voice."""

    name: str | None
    format: Format

    @property
    def response_format(self) -> str:
        """The format by the name that it has in requests for speech."""
        return "pcm" if self.format == "pcm16" else self.format


def wants_sound(fields: Mapping[str, Raw]) -> bool:
    modalities = decode(fields.get("modalities", b"null"))
    return isinstance(modalities, list) and "audio" in modalities


def voice_of(fields: Mapping[str, Raw]) -> Voice:
    """Of a request that wants sound. Raises ProviderInvalidRequest for one that wants it in a wrong way."""
    names = (*FIELDS, "stream", "n")
    modalities, audio, stream, n = (decode(fields[name]) if name in fields else None for name in names)
    if sorted(map(str, modalities or ())) != ["audio", "text"]:
        raise ProviderInvalidRequest('modalities: must be ["text"] or ["text", "audio"]', param="modalities")
    given = audio if isinstance(audio, dict) else {}
    voice, format = given.get("voice"), given.get("format")
    if isinstance(voice, dict):
        voice = voice.get("id")
    if not isinstance(voice, str | None):
        raise ProviderInvalidRequest("audio.voice: must be a string", param="audio.voice")
    if format not in get_args(Format):
        known = ", ".join(get_args(Format))
        raise ProviderInvalidRequest(f"audio.format: must be one of {known}", param="audio.format")
    if stream is True and format != STREAMED:
        raise ProviderInvalidRequest(f"audio.format: must be {STREAMED} with stream: true", param="audio.format")
    if n not in (None, 1):
        raise ProviderInvalidRequest("n: a spoken answer is one", param="n")
    return Voice(voice, cast(Format, format))


def in_text(fields: Mapping[str, Raw], said: Mapping[str, str]) -> bytes:
    """The body of the request for the text alone. said: the texts of earlier answers, by the ids of their sound.

    Raises ProviderInvalidRequest for an id that isn't known.
    """
    left = {name: value for name, value in fields.items() if name not in FIELDS}
    messages = decode(fields.get("messages", b"null"))
    if isinstance(messages, list):
        left["messages"] = Raw(encode([_in_text(message, said) for message in messages]))
    return encode(left)


def _in_text(message: Any, said: Mapping[str, str]) -> Any:
    audio = message.get("audio") if isinstance(message, dict) else None
    if not isinstance(audio, dict):
        return message
    left: Message = {key: value for key, value in message.items() if key != "audio"}
    if not left.get("content"):
        text = said.get(str(audio.get("id")))
        if text is None:
            reason = "messages: what was said isn't known any more; send the transcript as its content"
            raise ProviderInvalidRequest(reason, code="audio_expired", param="messages")
        left["content"] = text
    return left


class Sentences:
    """Cuts a text that comes in pieces where a speaker would pause."""

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, text: str) -> list[str]:
        """The sentences that are complete."""
        self._rest += text
        found, begin = [], 0
        while (end := self._end(begin)) is not None:
            found.append(self._rest[begin:end])
            begin = end
        self._rest = self._rest[begin:]
        return [sentence for sentence in found if sentence.strip()]

    def finish(self) -> list[str]:
        rest, self._rest = self._rest, ""
        return [rest] if rest.strip() else []

    def _end(self, begin: int) -> int | None:
        """Of the sentence that begins there."""
        earliest, latest = begin + MIN_SENTENCE, begin + MAX_SENTENCE
        for found in _END.finditer(self._rest, begin, latest):
            if found.end() >= earliest:
                return found.end()
        if len(self._rest) <= latest:
            return None
        pauses = [found.end() for found in _PAUSE.finditer(self._rest, earliest, latest)]
        return pauses[-1] if pauses else latest


def whole_answer(body: bytes, id: str, expires_at: int, sound: bytes) -> bytes:
    """A whole answer with the sound of its text."""
    answer = decode(body)
    message = answer["choices"][0]["message"]
    audio = {"id": id, "data": b64encode(sound).decode(), "expires_at": expires_at, "transcript": message["content"]}
    message.update(content=None, audio=audio)
    return encode(answer)


def text_of(body: bytes) -> str:
    """The text of a whole answer; "" if it has none."""
    return decode(body)["choices"][0]["message"].get("content") or ""


class SpokenStream:
    """Rewrites the chunks of a streamed answer: its text is the transcript of sound. The end waits for the sound."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.text = ""
        self.last: list[bytes] = []
        """The chunks that end the answer."""
        self._ended = False
        self._shape: Json = {}

    def feed(self, payload: bytes) -> tuple[list[bytes], str]:
        """The chunks for the client, and the text to speak."""
        chunk = decode(payload)
        self._shape = {key: chunk[key] for key in ("id", "object", "created", "model") if key in chunk}
        choices = chunk.get("choices") or []
        if self._ended:
            self.last.append(payload)
            return [], ""
        if not choices:
            return [payload], ""  # Azure's first one has its filter's results alone
        delta = choices[0].get("delta") or {}
        text = delta.pop("content", None) or ""
        if text:
            self.text += text
            delta["audio"] = {"id": self.id, "transcript": text}
        reason = choices[0].get("finish_reason")
        if reason is not None:
            self._ended = True
            self.last.append(encode({**chunk, "choices": [{**choices[0], "delta": {}}]}))
            choices[0]["finish_reason"] = None
        return ([encode(chunk)] if delta else []), text

    def sound(self, data: bytes) -> bytes:
        """A chunk with sound."""
        return self._chunk({"id": self.id, "data": b64encode(data).decode()})

    def end(self, expires_at: int) -> list[bytes]:
        """The chunks behind the last sound."""
        return [*([self._chunk({"id": self.id, "expires_at": expires_at})] if self.text else []), *self.last]

    def _chunk(self, audio: Json) -> bytes:
        choice = {"index": 0, "delta": {"audio": audio}, "finish_reason": None}
        return encode({**self._shape, "choices": [choice]})

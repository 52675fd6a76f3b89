"""Replaces the sound in a conversation by what was said, for a model that reads text."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from gateway.errors import ProviderInvalidRequest, ProviderInvalidResponse
from gateway.wire.conversation import Message, plain, text_part

TRANSCRIBED = "sounds_transcribed"
"""A kind of change to a conversation, counted in `healed`."""

_NAME = re.compile(rb"input_audio").search
_ESCAPE = re.compile(rb"\\u00[2-7]").search
"""What may spell the name in another way."""


class Sound(NamedTuple):
    """data: in base64. format: wav, mp3, or another that the client names."""

    data: str
    format: str

    def content(self) -> bytes:
        """Raises ProviderInvalidRequest."""
        try:
            return base64.b64decode(self.data, validate=True)
        except (binascii.Error, ValueError):
            raise ProviderInvalidRequest("input_audio.data: must be base64", param="messages") from None


def transcript(body: bytes) -> str:
    """The text of a whole transcription. Raises ProviderInvalidResponse."""
    try:
        found: Any = msgspec.json.decode(body)
        text = found["text"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ProviderInvalidResponse(f"a transcription can't be read: {error}") from error
    if not isinstance(text, str):
        raise ProviderInvalidResponse("a transcription has no text")
    return text


def may_have(messages: Raw) -> bool:
    """Whether raw messages may contain sound. A false positive costs time alone."""
    return _NAME(messages) is not None or _ESCAPE(messages) is not None


def sounds(messages: list[Message]) -> list[Sound]:
    """Each once, in the order of the conversation. Raises ProviderInvalidRequest for a part without sound."""
    return [*dict.fromkeys(sound for message in messages for part in _parts(message) if (sound := _sound(part)))]


def with_texts(messages: list[Message], texts: Mapping[Sound, str]) -> tuple[list[Message], Mapping[str, int]]:
    """The messages with texts in place of the sound, and how many there were, by kind."""
    made: list[Message] = []
    count = 0
    for message in messages:
        parts = [*_parts(message)]
        found = sum(_sound(part) is not None for part in parts)
        count += found
        made.append({**message, "content": plain([*_as_texts(parts, texts)])} if found else message)
    return made, {TRANSCRIBED: count} if count else {}


def _as_texts(parts: list[Any], texts: Mapping[Sound, str]) -> Iterator[Any]:
    for part in parts:
        sound = _sound(part)
        yield part if sound is None else text_part(texts[sound])


def _parts(message: Message) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def _sound(part: Any) -> Sound | None:
    """None of any other part. Raises ProviderInvalidRequest."""
    if not isinstance(part, dict) or part.get("type") != "input_audio":
        return None
    given = part.get("input_audio")
    data, format = (given.get("data"), given.get("format")) if isinstance(given, dict) else (None, None)
    if not isinstance(data, str) or not isinstance(format, str) or not re.fullmatch(r"[a-z0-9]{1,10}", format):
        raise ProviderInvalidRequest("input_audio: needs data in base64, and a format such as wav", param="messages")
    return Sound(data, format)

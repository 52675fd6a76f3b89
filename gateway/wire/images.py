"""Replaces the images of a conversation by texts, for a model that reads text alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Raw

from gateway.wire.conversation import Message, plain, text_part

NOTE = "[image left out: this model reads text]"

LEFT_OUT, DESCRIBED = "images_left_out", "images_described"
"""Kinds of changes to a conversation, counted in `healed`."""

_NAME = re.compile(rb"image_url").search
_ESCAPE = re.compile(rb"\\u00[2-7]").search
"""What may spell the name in another way. One expression for both would take thirty times as long."""


def may_have(messages: Raw) -> bool:
    """Whether raw messages may contain an image. A false positive costs time alone."""
    return _NAME(messages) is not None or _ESCAPE(messages) is not None


def described(text: str, model: str) -> str:
    """The text in the place of an image. model: the name of the one that described it."""
    return f"[image, as {model} describes it: {text}]"


def urls(messages: list[Message]) -> list[str]:
    """The URLs of all images, data: URLs among them, each once, in the order of the conversation."""
    found = (_url(part) for message in messages for part in _parts(message))
    return [*dict.fromkeys(url for url in found if url is not None)]


def with_texts(messages: list[Message], texts: Mapping[str, str]) -> tuple[list[Message], Mapping[str, int]]:
    """The messages with texts in place of the images, and how many there were, by kind. texts: by URL; else NOTE.

    A user's message of nothing but images behind a tool's result came with that result: APIs whose results hold images
    put it there. Its texts become part of the result.
    """
    made: list[Message] = []
    kinds: Counter[str] = Counter()
    for message in messages:
        parts = [*_parts(message)]
        images = [url for part in parts if (url := _url(part)) is not None]
        if not images:
            made.append(message)
            continue
        kinds.update(DESCRIBED if url in texts else LEFT_OUT for url in images)
        if len(images) == len(parts) and message.get("role") == "user" and made and made[-1].get("role") == "tool":
            notes = [text_part(texts.get(url, NOTE)) for url in images]
            made[-1] = {**made[-1], "content": plain([*_parts(made[-1]), *notes])}
        else:
            made.append({**message, "content": plain([*_as_texts(parts, texts)])})
    return made, kinds


def _as_texts(parts: list[Any], texts: Mapping[str, str]) -> Iterator[Any]:
    for part in parts:
        if (url := _url(part)) is not None:
            yield text_part(texts.get(url, NOTE))
        elif not (isinstance(part, dict) and part.get("type") == "text" and part.get("text") == ""):
            yield part


def _parts(message: Message) -> list[Any]:
    content = message.get("content")
    return (
        content if isinstance(content, list) else [text_part(content)] if isinstance(content, str) and content else []
    )


def _url(part: Any) -> str | None:
    """The URL of a part that is an image, "" of one without; None of any other part."""
    if not isinstance(part, dict) or part.get("type") != "image_url":
        return None
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    return url if isinstance(url, str) else ""

"""Estimates how many tokens a request's prompt has, if no engine can count them."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from gateway.wire.chat import ChatRequest, decode
from gateway.wire.values import STEP

BYTES_PER_TOKEN = 3.6
"""Bytes per token of English prose and code in JSON, a mean over today's small models, which range from 3 to 4.5."""
PER_MESSAGE = 4
"""The markers that chat templates put around each message."""
PER_PICTURE = 800


class TokenCount(Struct, frozen=True):
    tokens: int
    exact: bool


def estimate(request: ChatRequest) -> int:
    messages = decode(request.fields["messages"])
    size = sum(_size(message) for message in messages) + len(request.tools or b"")
    pictures = sum(_pictures(message.get("content")) for message in messages)
    return round(size / BYTES_PER_TOKEN) + PER_MESSAGE * len(messages) + PER_PICTURE * pictures


def _size(value: Any) -> int:
    """Bytes of the text in it, without images."""
    if isinstance(value, str):
        return 0 if value.startswith("data:") else _bytes(value)
    if isinstance(value, list):
        return sum(map(_size, value))
    if isinstance(value, dict):
        return sum(_size(inner) for key, inner in value.items() if key not in ("role", "type"))
    return 0


def _bytes(text: str) -> int:
    """Its length in UTF-8, without a copy of all of it."""
    if text.isascii():
        return len(text)
    return sum(len(text[at : at + STEP].encode()) for at in range(0, len(text), STEP))


def _pictures(content: Any) -> int:
    return sum(part.get("type") == "image_url" for part in content) if isinstance(content, list) else 0

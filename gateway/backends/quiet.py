"""Answers of a server that reuses prompts for everybody, without the figures that tell what it has reused."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.backends.base import WrappedReply
from gateway.wire.chat import encode

MARKS = (b"cache", b'"timings"', b'"prompt_eval_duration"')
"""What a payload with such figures contains, and a few others do."""
FIGURES = ("timings", "prompt_eval_duration")
"""llama.cpp's speed and Ollama's: both follow from how much of a prompt was read."""


class Quiet(WrappedReply):
    """Another reply, without its figures about the server's cache. Its time still says something."""

    __slots__ = ()

    async def whole(self) -> bytes:
        return without_figures(await self._reply.whole())

    async def payloads(self) -> list[bytes]:
        return [without_figures(payload) for payload in await self._reply.payloads()]


def without_figures(payload: bytes) -> bytes:
    """A JSON object without what it says of the server's cache; anything else unchanged."""
    if not any(mark in payload for mark in MARKS):
        return payload
    try:
        found = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return payload  # its reader reports it
    if not isinstance(found, dict):
        return payload
    kept = {name: value for name, value in found.items() if name not in FIGURES}
    if isinstance(kept.get("usage"), dict):
        kept["usage"] = _without_cache(kept["usage"])
    return encode(kept)


def _without_cache(usage: Any) -> Any:
    """Without the counts whose names speak of a cache, such as OpenAI's, Anthropic's and DeepSeek's."""
    if not isinstance(usage, dict):
        return usage
    return {name: _without_cache(value) for name, value in usage.items() if "cache" not in name}

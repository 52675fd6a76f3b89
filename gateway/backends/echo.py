"""The built-in echo answers with the last user message, to try a client without a model."""

from __future__ import annotations

import re
import time
from collections.abc import Generator
from typing import Any

import msgspec
from msgspec import Raw

from gateway.backends.base import Backend, Reply
from gateway.errors import ImagesUnsupported, ProviderInvalidRequest
from gateway.wire.chat import ChatRequest, decode, encode
from gateway.wire.images import urls


class EchoBackend(Backend):
    """Needs no server and no weights. Counts words as tokens."""

    async def open(self, request: ChatRequest, fields: dict[str, Raw]) -> EchoReply:
        messages: list[dict[str, Any]] = decode(fields["messages"])
        if urls(messages):
            raise ImagesUnsupported("echo reads text alone", param="messages")
        limit = fields.get("max_completion_tokens") or fields.get("max_tokens")
        return EchoReply(
            self.model.name,
            prompt=[_text(message) for message in messages],
            answer=next((_text(m) for m in reversed(messages) if m.get("role") == "user"), ""),
            limit=msgspec.json.decode(limit, type=int | None) if limit else None,
            usage=request.include_usage,
        )


class EchoReply(Reply):
    """Streams the answer word by word; white space stays with the word before it."""

    def __init__(self, model: str, *, prompt: list[str], answer: str, limit: int | None, usage: bool) -> None:
        words = re.findall(r"\S+\s*", answer)
        if before := answer[: len(answer) - len(answer.lstrip())]:
            words[:1] = [before + "".join(words[:1])]
        cut = limit is not None and 0 < limit < len(words)
        self._words = words[:limit] if cut else words
        self._reason = "length" if cut else "stop"
        self._include_usage = usage
        prompt_tokens = sum(len(text.split()) for text in prompt)
        self._usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(self._words),
            "total_tokens": prompt_tokens + len(self._words),
        }
        self._shell = {"id": "chatcmpl-echo", "created": int(time.time()), "model": model}
        self._chunks = self._stream()
        self.done = False

    async def whole(self) -> bytes:
        message = {"role": "assistant", "content": "".join(self._words)}
        choice = {"index": 0, "message": message, "finish_reason": self._reason}
        return encode({**self._shell, "object": "chat.completion", "choices": [choice], "usage": self._usage})

    async def payloads(self) -> list[bytes]:
        chunk = next(self._chunks, None)
        if chunk is None:
            self.done = True
            return []
        return [chunk]

    def close(self) -> None:
        self._chunks.close()

    def _stream(self) -> Generator[bytes]:
        yield self._chunk({"role": "assistant", "content": ""})
        for word in self._words:
            yield self._chunk({"content": word})
        yield self._chunk({}, self._reason)
        if self._include_usage:
            yield encode({**self._shell, "object": "chat.completion.chunk", "choices": [], "usage": self._usage})

    def _chunk(self, delta: dict[str, str], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return encode({**self._shell, "object": "chat.completion.chunk", "choices": [choice]})


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text", "") for part in content if isinstance(part, dict)]
        if not all(isinstance(text, str) for text in texts):
            raise ProviderInvalidRequest("messages: the text of a part must be a string", param="messages")
        return "".join(texts)
    return content if isinstance(content, str) else ""

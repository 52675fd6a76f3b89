"""A stream's chunks, put together to the whole answer that they are.

An engine that streams finds at each token whether anybody waits for it still, and what it says shows that it gets on.
llama.cpp looks after a whole answer's client once a second or not at all: so it is asked for streams alone.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.errors import ProviderInvalidResponse, ProviderUnavailable
from gateway.upstream import MAX_BODY
from gateway.wire.chat import decode, encode

ASKED = {"stream": msgspec.Raw(b"true"), "stream_options": msgspec.Raw(b'{"include_usage":true}')}
"""Request fields."""


class Collector:
    """Feed it the payloads of a chat's stream, then take the `body`."""

    def __init__(self) -> None:
        self._body: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._texts: dict[int, dict[str, list[str]]] = {}
        """The texts of each choice's message in their pieces."""
        self._size = 0

    def feed(self, payload: bytes) -> bool:
        """False for an error, which is all of the answer then. Raises ProviderInvalidResponse."""
        self._size += len(payload)
        if self._size > MAX_BODY:
            raise ProviderInvalidResponse(f"the engine's answer exceeds {MAX_BODY} bytes")
        try:
            chunk = decode(payload)
            if chunk.get("error") is not None:
                return False
            for choice in chunk.pop("choices", None) or ():
                self._choice(choice)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AttributeError, TypeError) as error:
            raise ProviderInvalidResponse(f"the engine sent a malformed chunk: {error}") from error
        self._body.update(chunk)
        return True

    def body(self, *, done: bool) -> bytes:
        """done: the stream has ended as it should. Raises ProviderUnavailable for one that broke off."""
        choices = [self._choices[index] for index in sorted(self._choices)]
        for index, texts in self._texts.items():
            self._choices[index]["message"] |= {key: "".join(parts) for key, parts in texts.items()}
        if not done and not all(choice["finish_reason"] for choice in choices):
            raise ProviderUnavailable("the engine's answer ended in the middle", status=502)
        for choice in choices:
            message = choice["message"]
            if message["content"] is None and not message.get("tool_calls"):
                message["content"] = ""
        return encode({**self._body, "object": "chat.completion", "choices": choices})

    def _choice(self, part: dict[str, Any]) -> None:
        index = part.get("index", 0)
        if not isinstance(index, int):
            raise TypeError(f"a choice's index is {index!r}")
        choice = self._choices.get(index)
        if choice is None:
            message: dict[str, Any] = {"role": "assistant", "content": None}
            choice = self._choices[index] = {"index": index, "message": message, "finish_reason": None}
            self._texts[index] = {}
        for key, value in (part.get("delta") or {}).items():
            if key == "tool_calls":
                for call in value or ():
                    _call(choice["message"].setdefault("tool_calls", []), call)
            elif isinstance(value, str) and key != "role":
                self._texts[index].setdefault(key, []).append(value)
            elif value is not None:
                choice["message"][key] = value
        if (logprobs := part.get("logprobs")) is not None:
            kept = choice.setdefault("logprobs", {})
            for key, value in logprobs.items():
                if isinstance(value, list):
                    kept.setdefault(key, []).extend(value)
                elif value is not None or key not in kept:
                    kept[key] = value
        if part.get("finish_reason") is not None:
            choice["finish_reason"] = part["finish_reason"]


def _call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    index = part.get("index", len(calls))
    call = next((call for call in calls if call["index"] == index), None)
    if call is None:
        call = {"index": index, "type": "function", "function": {"name": "", "arguments": ""}}
        calls.append(call)
    function = part.get("function") or {}
    for key in ("name", "arguments"):
        call["function"][key] += function.get(key) or ""
    call.update({key: value for key, value in part.items() if key not in ("function", "index")})

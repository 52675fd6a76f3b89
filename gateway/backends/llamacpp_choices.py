"""Combines the usage of several choices: llama.cpp counts the tokens of each one separately."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from gateway.backends.completion import CompletionReply
from gateway.backends.openai import HTTPReply, json_object, malformed
from gateway.upstream import Response
from gateway.wire.chat import encode

Json = dict[str, Any]


class Counts:
    """Takes each choice's counts out of a stream of chat chunks, and adds them up.

    With `include_usage`, each choice has a chunk with its usage: these become one, at the end. The last chunk of each
    choice may have `timings`, from which the request log counts: the last of these chunks gets the sum.
    """

    def __init__(self, choices: int) -> None:
        self._choices = choices
        self._usage_chunk: Json = {}
        self._usages: list[Json] = []
        self._timings: list[Json] = []

    def strip(self, payload: bytes) -> list[bytes]:
        """Raises ProviderInvalidResponse."""
        if b'"usage"' not in payload and b'"timings"' not in payload:
            return [payload]
        chunk = json_object(payload)
        timings = chunk.pop("timings", None)
        if isinstance(chunk.get("usage"), dict):
            self._usages.append(chunk["usage"])
            self._usage_chunk = chunk
            return []
        try:
            ends = any(choice.get("finish_reason") for choice in chunk.get("choices") or ())
        except (AttributeError, TypeError) as error:
            raise malformed(error) from error
        if ends and isinstance(timings, dict):
            self._timings.append(timings)
            if len(self._timings) == self._choices:
                chunk["timings"] = _added(self._timings)
        return [encode(chunk)]

    def rest(self) -> list[bytes]:
        """The chunk with the usage of all choices, once, if there is any."""
        if not self._usages:
            return []
        prompt = max(_number(one.get("prompt_tokens")) for one in self._usages)
        cached = min(map(_cached, self._usages))
        written = _sum(self._usages, "completion_tokens")
        self._usages = []
        usage = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
        details = {"prompt_tokens_details": {"cached_tokens": cached}}
        return [encode({**self._usage_chunk, "choices": [], "usage": {**usage, **details}})]


class _Counted(HTTPReply):
    __slots__ = ()

    counts: Counts

    async def payloads(self) -> list[bytes]:
        while came := await super().payloads():
            if kept := [chunk for payload in came for chunk in self.counts.strip(payload)]:
                return kept
        return self.counts.rest()

    def direct(self) -> None:  # type: ignore[override]
        """None: the payloads have to change before the client gets them."""
        return


class ChoicesReply(_Counted):
    __slots__ = ("counts",)

    def __init__(self, response: Response, choices: int) -> None:
        super().__init__(response)
        self.counts = Counts(choices)

    def whole(self) -> Awaitable[bytes]:
        return super().whole() if self._is_stream() else self._whole()

    async def _whole(self) -> bytes:
        """llama.cpp answers with logprobs and tools only whole, with the usage of the first choice, which stays if it
        told no logprobs."""
        whole = await self._response.read()
        body = json_object(whole)
        try:
            written = sum(len(choice["logprobs"]["content"]) for choice in body["choices"])
            body["usage"] |= {"completion_tokens": written, "total_tokens": body["usage"]["prompt_tokens"] + written}
        except (KeyError, TypeError):
            return whole
        return encode(body)


class ChoicesCompletionReply(_Counted, CompletionReply):
    """Of `/v1/completions`."""

    __slots__ = ("counts",)

    def __init__(self, response: Response, *, choices: int, **options: Any) -> None:
        super().__init__(response, **options)
        self.counts = Counts(choices)


def _added(timings: list[Json]) -> Json:
    """The times are those of the choice for which the prompt was read: the others reuse its cache."""
    reader = max(timings, key=lambda one: _number(one.get("prompt_n")))
    return {**reader, "predicted_n": _sum(timings, "predicted_n")}


def _sum(counted: list[Json], name: str) -> int:
    return sum(_number(one.get(name)) for one in counted)


def _cached(usage: Json) -> int:
    details = usage.get("prompt_tokens_details")
    return _number(details.get("cached_tokens")) if isinstance(details, dict) else 0


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0

"""A chat answer as a sequence of pieces, the input of the other APIs' encoders.

A whole answer yields the same pieces as a stream of one chunk, so encoders treat both alike. Only the first choice
counts, because these APIs have no `n`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import zip_longest
from typing import Any

import msgspec
from msgspec import Struct

from gateway.errors import ProviderInvalidResponse
from gateway.wire.lenient import BROKEN, LenientReader


class TextPiece(Struct, frozen=True):
    """logprobs: these tokens' entries of OpenAI's `logprobs.content`. refused: it says why there is no answer."""

    text: str
    logprobs: list[Any] = []
    refused: bool = False


class Citation(Struct, frozen=True):
    """A page on the web that the text cites, from its character `start_index` to before `end_index`."""

    url: str
    title: str | None = None
    start_index: int | None = None
    end_index: int | None = None


class ReasoningPiece(Struct, frozen=True):
    text: str


class CallStart(Struct, frozen=True):
    index: int
    id: str
    name: str


class CallArguments(Struct, frozen=True):
    """json: a fragment of the arguments; all fragments together are valid JSON."""

    index: int
    json: str


class End(Struct, frozen=True):
    """reason: OpenAI's finish_reason. stop: the stop sequence that ended the answer, if the engine reports it."""

    reason: str
    stop: str | None = None


class UsagePiece(Struct, frozen=True):
    """Token counts. `prompt` includes `cached`, `completion` includes `reasoning`.

    prompt_seconds, completion_seconds: the engine's own timings, if it reports them.
    """

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0
    prompt_seconds: float | None = None
    completion_seconds: float | None = None


class Warned(Struct, frozen=True):
    """What the gateway tells the client about the answer, each with a `code` and a `text`."""

    warnings: list[dict[str, str]]


Piece = TextPiece | Citation | ReasoningPiece | CallStart | CallArguments | End | UsagePiece | Warned


class _Function(Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(Struct):
    """refusal, annotations: of any kind, because no other reader has looked at them."""

    content: str | None = None
    refusal: Any = None
    annotations: Any = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Logprobs(Struct):
    """content: of a chat, and of llama.cpp's completions. The others: of other completions; servers differ in them."""

    content: list[Any] | None = None
    tokens: Any = None
    token_logprobs: Any = None
    top_logprobs: Any = None

    def entries(self) -> list[Any]:
        """In the form of a chat's `logprobs.content`."""
        if self.content is not None:
            return self.content
        lists = [one if isinstance(one, list) else [] for one in (self.tokens, self.token_logprobs, self.top_logprobs)]
        return [
            {**_entry(token, logprob), "top_logprobs": _entries(top)}
            for token, logprob, top in zip_longest(*lists)
            if isinstance(token, str) and isinstance(logprob, int | float)
        ]


def _entry(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": [*token.encode()]}


def _entries(top: object) -> list[dict[str, Any]]:
    """Of the likeliest tokens, as a mapping from each to its log-probability."""
    found = top.items() if isinstance(top, dict) else ()
    return [_entry(token, logprob) for token, logprob in found if isinstance(logprob, int | float)]


class _Choice(Struct):
    index: int = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: Any = None
    matched_stop: Any = None
    stop_str: Any = None
    """The stop sequence, in the words of vLLM, SGLang and TabbyAPI; the first two tell a token by its number."""
    logprobs: _Logprobs | None = None


class _Details(Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Answer(Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    timings: Any = None
    """In llama.cpp's format; other servers may use the name for something else."""
    ctxgate: Any = None
    """The gateway's own field; a gateway may be the server, too."""


_decode = msgspec.json.Decoder(_Answer).decode


def pieces(payload: bytes) -> Iterator[Piece]:
    """Yields the pieces of a streamed chunk or of a whole answer. Raises ProviderInvalidResponse."""
    try:
        answer = _decode(payload)
    except BROKEN:
        # Numbers that no other reader has looked at.
        answer = _lenient(payload)
    for choice in answer.choices or ():
        if choice.index == 0:
            yield from _of_choice(choice)
    if isinstance(answer.ctxgate, dict) and isinstance(warnings := answer.ctxgate.get("warnings"), list):
        yield Warned(warnings)
    if answer.usage is not None:
        yield _of_usage(answer.usage, answer.timings if isinstance(answer.timings, dict) else {})


_MAX_MS = 1e12


def _lenient(payload: bytes) -> _Answer:
    try:
        return msgspec.convert(LenientReader().read(payload, last=True), _Answer)
    except BROKEN as error:
        raise ProviderInvalidResponse(f"the engine's answer is malformed: {error}") from error


def _of_choice(choice: _Choice) -> Iterator[Piece]:
    message = choice.delta or choice.message
    if message is not None:
        if reasoning := message.reasoning_content or message.reasoning:
            yield ReasoningPiece(reasoning)
        logprobs = choice.logprobs.entries() if choice.logprobs is not None else []
        if message.content or logprobs:
            yield TextPiece(message.content or "", logprobs)
        if message.refusal and isinstance(message.refusal, str):
            yield TextPiece(message.refusal, refused=True)
        for annotation in message.annotations if isinstance(message.annotations, list) else ():
            with suppress(KeyError, TypeError, msgspec.ValidationError):
                yield msgspec.convert(annotation["url_citation"], Citation)
        for position, call in enumerate(message.tool_calls or ()):
            index = position if call.index is None else call.index
            function = call.function or _Function()
            if call.id is not None:
                yield CallStart(index, call.id, function.name or "")
            if function.arguments:
                yield CallArguments(index, function.arguments)
    elif choice.text:
        # a text completion
        yield TextPiece(choice.text, choice.logprobs.entries() if choice.logprobs is not None else [])
    if choice.finish_reason is not None:
        told = (choice.stop_reason, choice.matched_stop, choice.stop_str)
        yield End(choice.finish_reason, next((stop for stop in told if isinstance(stop, str) and stop), None))


def _of_usage(usage: _Usage, took: dict[str, Any]) -> UsagePiece:
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    return UsagePiece(
        usage.prompt_tokens or 0,
        usage.completion_tokens or 0,
        (prompt and prompt.cached_tokens) or 0,
        (completion and completion.reasoning_tokens) or 0,
        _seconds(took.get("prompt_ms")),
        _seconds(took.get("predicted_ms")),
    )


def _seconds(milliseconds: Any) -> float | None:
    """None for a time that no answer takes."""
    return milliseconds / 1000 if isinstance(milliseconds, int | float) and 0 <= milliseconds < _MAX_MS else None

"""A chat answer as the few things that can happen in it: what the encoders of other APIs read.

A whole answer gives the pieces of a stream with one chunk, so an encoder has one way for both. Only the first choice
counts: these APIs know no `n`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from gateway.errors import ProviderInvalidResponse


class Text(Struct, frozen=True):
    """logprobs: OpenAI's `logprobs.content` of these tokens."""

    text: str
    logprobs: list[Any] = []


class Reasoning(Struct, frozen=True):
    text: str


class CallStart(Struct, frozen=True):
    index: int
    id: str
    name: str


class CallArguments(Struct, frozen=True):
    """json: the next part of the arguments, which are valid JSON together."""

    index: int
    json: str


class End(Struct, frozen=True):
    """reason: OpenAI's finish_reason. stop: the stop sequence that ended the answer, where the engine tells."""

    reason: str
    stop: str | None = None


class Usage(Struct, frozen=True):
    """Tokens. `cached` are part of `prompt`, `reasoning` of `completion`.

    reading, writing: seconds that the engine took for prompt and completion, where it tells.
    """

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0
    reading: float | None = None
    writing: float | None = None


Piece = Text | Reasoning | CallStart | CallArguments | End | Usage


class _Function(Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Logprobs(Struct):
    content: list[Any] | None = None


class _Choice(Struct):
    index: int = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: Any = None
    logprobs: _Logprobs | None = None


class _PromptDetails(Struct):
    cached_tokens: int | None = None


class _CompletionDetails(Struct):
    reasoning_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _Answer(Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    timings: Any = None
    """llama.cpp's; what another server means by it isn't known."""


_decode = msgspec.json.Decoder(_Answer).decode


def pieces(payload: bytes) -> Iterator[Piece]:
    """What a chunk of a stream, or a whole answer, says. Raises ProviderInvalidResponse."""
    try:
        answer = _decode(payload)
    except msgspec.DecodeError as error:
        raise ProviderInvalidResponse(f"the engine's answer can't be read: {error}") from error
    for choice in answer.choices or ():
        if choice.index == 0:
            yield from _of_choice(choice)
    if answer.usage is not None:
        yield _of_usage(answer.usage, answer.timings if isinstance(answer.timings, dict) else {})


def _of_choice(choice: _Choice) -> Iterator[Piece]:
    said = choice.delta or choice.message
    if said is not None:
        if reasoning := said.reasoning_content or said.reasoning:
            yield Reasoning(reasoning)
        logprobs = (choice.logprobs and choice.logprobs.content) or []
        if said.content or logprobs:
            yield Text(said.content or "", logprobs)
        for position, call in enumerate(said.tool_calls or ()):
            index = position if call.index is None else call.index
            function = call.function or _Function()
            if call.id is not None:
                yield CallStart(index, call.id, function.name or "")
            if function.arguments:
                yield CallArguments(index, function.arguments)
    elif choice.text:
        yield Text(choice.text)  # of a text completion
    if choice.finish_reason is not None:
        stop = choice.stop_reason if isinstance(choice.stop_reason, str) else None
        yield End(choice.finish_reason, stop)


def _of_usage(usage: _Usage, took: dict[str, Any]) -> Usage:
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    return Usage(
        usage.prompt_tokens or 0,
        usage.completion_tokens or 0,
        (prompt and prompt.cached_tokens) or 0,
        (completion and completion.reasoning_tokens) or 0,
        _seconds(took.get("prompt_ms")),
        _seconds(took.get("predicted_ms")),
    )


def _seconds(milliseconds: Any) -> float | None:
    return milliseconds / 1000 if isinstance(milliseconds, int | float) else None

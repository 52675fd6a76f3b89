"""A prompt that is longer than the model's context window: told with both numbers, whoever noticed it."""

from __future__ import annotations

import re

from msgspec import Raw

from gateway.errors import ProviderInvalidRequest

_EXCEEDED = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        # llama.cpp, also within what Ollama passes on.
        r'"n_prompt_tokens"\s*:\s*(?P<prompt>\d+).*"n_ctx"\s*:\s*(?P<window>\d+)',
        r"request \((?P<prompt>\d+) tokens\) exceeds the available context size \((?P<window>\d+)",
        # OpenAI's words, which vLLM and llama-cpp-python use as well.
        r"maximum context length is (?P<window>\d+).*\((?P<prompt>\d+) in the messages",
        r"maximum context length is (?P<window>\d+).*(?:requested|request has) (?P<prompt>\d+)",
        r"maximum context length is (?P<window>\d+).*resulted in (?P<prompt>\d+)",
        # LM Studio.
        r"keep the first (?P<prompt>\d+) tokens.*context length of only (?P<window>\d+)",
        # Ollama's own engine.
        r"exceeded max context length by (?P<over>\d+) tokens",
        r"(?:prompt is longer than|input length exceeds) the context length",
    )
)
"""What engines say, the more precise first."""


def context_length_exceeded(prompt: int | None, window: int | None) -> ProviderInvalidRequest:
    """`prompt` and `window` in tokens, None where the engine doesn't tell; both also stand in the error's `details`."""
    has = f"has {prompt} tokens" if prompt is not None else "is too long"
    fits = "" if window is None else f", the context window {window}" if prompt is not None else f" for {window} tokens"
    return ProviderInvalidRequest(
        f"the prompt {has}{fits}: shorten the messages or raise context_window",
        code="context_length_exceeded",
        param="messages",
        details={"prompt_tokens": prompt, "context_window": window},
    )


def exceeded(message: str, window: int | None = None) -> ProviderInvalidRequest | None:
    """The error that an engine's message stands for; None where it is about something else.

    window: the model's, for engines that don't say it.
    """
    for pattern in _EXCEEDED:
        if found := pattern.search(message):
            told = {name: int(number) for name, number in found.groupdict().items()}
            window = told.get("window", window)
            if "over" in told and window is not None:
                told["prompt"] = window + told["over"]
            return context_length_exceeded(told.get("prompt"), window)
    return None


SPARE_TOKENS = 256
"""What a chat template may add on its own, beyond what JSON's own signs leave room for."""


def may_exceed(fields: dict[str, Raw], window: int) -> bool:
    """Whether a prompt could be longer than the window: a token is one byte at least. False needs no counting."""
    tools = fields.get("tools")
    size = len(bytes(fields["messages"])) + (len(bytes(tools)) if tools is not None else 0)
    return size + SPARE_TOKENS >= window

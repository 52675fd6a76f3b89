"""One error for every prompt that exceeds the context window, with both sizes, whoever detects it."""

from __future__ import annotations

import re

from msgspec import Raw

from gateway.errors import ProviderInvalidRequest

CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
"""OpenAI's code."""

_EXCEEDED = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        # llama.cpp, and Ollama, which forwards its message.
        r'"n_prompt_tokens"\s*:\s*(?P<prompt>\d{1,12}).*"n_ctx"\s*:\s*(?P<window>\d{1,12})',
        r"request \((?P<prompt>\d{1,12}) tokens\) exceeds the available context size \((?P<window>\d{1,12})",
        # OpenAI, vLLM and llama-cpp-python.
        r"maximum context length is (?P<window>\d{1,12}).*\((?P<prompt>\d{1,12}) in the messages",
        r"maximum context length is (?P<window>\d{1,12}).*(?:requested|request has) (?P<prompt>\d{1,12})",
        r"maximum context length is (?P<window>\d{1,12}).*resulted in (?P<prompt>\d{1,12})",
        # LM Studio.
        r"keep the first (?P<prompt>\d{1,12}) tokens.*context length of only (?P<window>\d{1,12})",
        # Ollama's own engine.
        r"exceeded max context length by (?P<over>\d{1,12}) tokens",
        r"(?:prompt is longer than|input length exceeds) the context length",
    )
)
"""Patterns of engines' messages, the most precise first."""


def context_length_exceeded(prompt: int | None, window: int | None) -> ProviderInvalidRequest:
    """The error, with both sizes in its `details`, in OpenAI's words: several clients recognise it by those alone.

    prompt, window: in tokens, None if the engine doesn't report it."""
    longest = f"This model's maximum context length is {f'{window} tokens' if window is not None else 'exceeded'}."
    found = f"resulted in {prompt} tokens" if prompt is not None else "are longer"
    return ProviderInvalidRequest(
        f"{longest} However, your messages {found}. Please shorten them, or raise the model's context_window.",
        code=CONTEXT_LENGTH_EXCEEDED,
        param="messages",
        details={"prompt_tokens": prompt, "context_window": window},
    )


def exceeded(message: str, window: int | None = None) -> ProviderInvalidRequest | None:
    """Recognises an engine's message about a prompt that is too long; returns None for any other message.

    window: the model's context window in tokens, for engines that don't report it.
    """
    for pattern in _EXCEEDED:
        if found := pattern.search(message, 0, 20_000):  # a long one quotes the request, which may hold such words
            sizes = {name: int(number) for name, number in found.groupdict().items()}
            window = sizes.get("window", window)
            if "over" in sizes and window is not None:
                sizes["prompt"] = window + sizes["over"]
            return context_length_exceeded(sizes.get("prompt"), window)
    return None


SPARE_TOKENS = 256
"""How many tokens a chat template may add beyond the size of the JSON syntax."""


def may_exceed(fields: dict[str, Raw], window: int) -> bool:
    """Whether the prompt could exceed the window. A token has at least one byte, so False is certain."""
    return prompt_size(fields) + SPARE_TOKENS >= window


def prompt_size(fields: dict[str, Raw]) -> int:
    """Bytes of a request's prompt, a chat or a text."""
    return sum(len(bytes(fields[name])) for name in ("messages", "tools", "prompt") if name in fields)

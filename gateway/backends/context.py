"""The one error for a prompt that is longer than the model's context window."""

from __future__ import annotations

from gateway.errors import ProviderInvalidRequest


def context_length_exceeded(prompt: int, window: int) -> ProviderInvalidRequest:
    """`prompt` and `window` in tokens; both also stand in the error's `details`."""
    return ProviderInvalidRequest(
        f"the prompt has {prompt} tokens, the context window {window}: shorten the messages or raise context_window",
        code="context_length_exceeded",
        param="messages",
        details={"prompt_tokens": prompt, "context_window": window},
    )

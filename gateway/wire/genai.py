"""Attributes of spans, as OpenTelemetry's semantic conventions for generative AI name them."""

from __future__ import annotations

from typing import Any

Attributes = dict[str, Any]


def answered(
    *,
    model: str | None = None,
    id: str | None = None,
    finish_reason: str | None = None,
    prompt_tokens: int | None = None,
    completion_tokens: int | None = None,
) -> Attributes:
    """Of an answer. What is None is left out."""
    found: Attributes = {
        "gen_ai.response.model": model,
        "gen_ai.response.id": id,
        "gen_ai.response.finish_reasons": None if finish_reason is None else [finish_reason],
        "gen_ai.usage.input_tokens": prompt_tokens,
        "gen_ai.usage.output_tokens": completion_tokens,
    }
    return {name: value for name, value in found.items() if value is not None}

"""An engine's counts of tokens. A server of others may send what it likes as its counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST_TOKENS = 1 << 40
"""That one count may say: a day's sum has to fit into the database."""
FEW = 1 << 29
"""Nearly every count is below; Python compares smaller numbers faster."""


def tokens_of(usage: Mapping[str, Any]) -> tuple[int, int, int]:
    """Prompt, cached and completion tokens of an engine's counts. Ignores anything but numbers."""
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return count(prompt), count(cached), count(completion)


def spent(usage: Mapping[str, Any]) -> int:
    """Prompt and completion tokens together, each at most MOST_TOKENS."""
    return count(usage.get("prompt_tokens")) + count(usage.get("completion_tokens"))


def count(value: Any) -> int:
    """0 for anything but a number above it."""
    # A union of types would be made anew with each call.
    return int(min(value, MOST_TOKENS)) if (type(value) is int or type(value) is float) and value > 0 else 0

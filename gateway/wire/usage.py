"""An engine's counts of tokens. A server of others may send what it likes as its counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert

from gateway.wire.lenient import BROKEN, LenientReader

LONGEST_USAGE = 64 * 1024
"""Bytes. What is longer isn't read: it counts nothing, and would take many times as much memory."""
MAX_TOKENS = 1 << 40
"""That one count may say: a day's sum has to fit into the database."""
FEW = 1 << 29
"""Nearly every count is below; Python compares smaller numbers faster."""

_Count = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]


class SoundUsage(Struct, gc=False):
    """What OpenAI's clients expect of a usage."""

    prompt_tokens: _Count
    completion_tokens: _Count
    total_tokens: _Count
    prompt_tokens_details: dict[str, _Count | None] | None = None
    completion_tokens_details: dict[str, _Count | None] | None = None


def tokens_of(usage: Mapping[str, Any]) -> tuple[int, int, int]:
    """Prompt, cached and completion tokens of an engine's counts. Ignores anything but numbers."""
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return count(prompt), count(cached), count(completion)


UNITS = ("sound_seconds", "characters", "pictures")
"""What requests for sound and pictures count, besides tokens: seconds heard, characters to speak, pictures drawn."""


def units_of(usage: Mapping[str, Any]) -> dict[str, float]:
    """Those of UNITS that it has."""
    found = {unit: usage[unit] for unit in UNITS if unit in usage}
    return {unit: min(value, MAX_TOKENS) for unit, value in found.items() if type(value) in (int, float) and value > 0}


def spent(usage: Mapping[str, Any]) -> int:
    """Prompt and completion tokens together, each at most MAX_TOKENS."""
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if type(prompt) is int and type(completion) is int and 0 <= prompt <= FEW and 0 <= completion <= FEW:
        return prompt + completion  # as nearly always
    return count(prompt) + count(completion)


def count(value: Any) -> int:
    """0 for anything but a number above it."""
    # A union of types would be made anew with each call.
    return int(min(value, MAX_TOKENS)) if (type(value) is int or type(value) is float) and value > 0 else 0


def repaired_usage(usage: Any) -> dict[str, Any] | None:
    """The same `usage` if OpenAI's clients can read it, else one that they can; None for anything but an object."""
    if not isinstance(usage, dict) or is_sound(usage):
        return usage if isinstance(usage, dict) else None
    made = {**usage, **{name: whole_number(usage.get(name)) for name in _COUNTS}}
    if not made["total_tokens"]:
        made["total_tokens"] = made["prompt_tokens"] + made["completion_tokens"]
    for name in _DETAILS:
        if name in usage:
            details = usage[name]
            counts = details.items() if isinstance(details, dict) else ()
            made[name] = {key: whole_number(value) for key, value in counts}
    return made


def read_usage(written: bytes) -> dict[str, Any] | None:
    """The usage in an engine's JSON, also with numbers that JSON doesn't have; None if there is none to read."""
    if len(written) > LONGEST_USAGE:
        return None
    try:
        usage = LenientReader().read(written, last=True)
    except BROKEN:
        return None
    return usage if isinstance(usage, dict) else None


def is_sound(usage: Mapping[str, Any]) -> bool:
    """Whether it has all counts, and each is a whole number."""
    try:
        convert(usage, SoundUsage)
    except ValidationError:
        return False
    return True


def whole_number(value: Any) -> int:
    """The count, also where it is written as text. 0 for anything else."""
    return count(int(value) if isinstance(value, str) and value.isdecimal() and len(value) < _DIGITS else value)


_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
_DETAILS = ("prompt_tokens_details", "completion_tokens_details")
_DIGITS = 20

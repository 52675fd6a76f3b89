"""Parses and writes the `policy` and `limits` of tools and agents. Strict: reports every mistake. Touches no file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

from gateway.features.ctx.control import BadControlFile, Mistake
from gateway.features.ctx.settings import CtxTools

Access = Literal["read", "edit", "full"]
FOLDER = "caller"
"""The only supported folder: the one in which the caller executes the object, or from which it sends."""

LIMITS = ("wall_seconds", "model_calls", "tool_calls", "output_tokens")


def policy_text(policy: CtxTools) -> str:
    return (
        f"access={policy.access or 'none'}\nallow={','.join(policy.allow)}\ndeny={','.join(policy.deny)}\n"
        f"folder={FOLDER}\n"
    )


def parse_policy(text: str) -> CtxTools:
    """Parses lines of access, allow, deny and folder, each once. Raises BadControlFile."""
    found: dict[str, Any] = {}
    mistakes: list[Mistake] = []
    for number, key, value in _pairs("policy", text):
        if key in found:
            mistakes.append(Mistake("DuplicateKey", number, key))
        elif key in ("allow", "deny"):
            found[key] = tuple(name for name in (part.strip() for part in value.split(",")) if name)
        elif key == "access" and value in (*get_args(Access), "none"):
            found[key] = None if value == "none" else value
        elif key == "folder" and value == FOLDER:
            found[key] = value
        else:
            mistakes.append(Mistake("InvalidKey", number, f"{key}={value}"))
    if mistakes:
        raise BadControlFile("policy", mistakes)
    found.pop("folder", None)
    # An object without a policy may do nothing.
    return CtxTools(**{"access": None, **found})


def limits_text(limits: Mapping[str, float | None]) -> str:
    return "".join(f"{name}={limits[name]:.15g}\n" for name in LIMITS if limits.get(name) is not None)


def parse_limits(text: str) -> dict[str, float]:
    """Parses lines NAME=NUMBER. Raises BadControlFile."""
    found: dict[str, float] = {}
    mistakes: list[Mistake] = []
    for number, key, value in _pairs("limits", text):
        limit = _limit(key, value)
        if key not in LIMITS or key in found or limit is None:
            mistakes.append(Mistake("DuplicateKey" if key in found else "InvalidKey", number, f"{key}={value}"))
        else:
            found[key] = limit
    if mistakes:
        raise BadControlFile("limits", mistakes)
    return found


def _limit(key: str, value: str) -> float | None:
    """None for what is no limit. Only the calls of tools may be 0: a turn needs time, and a call of its model."""
    try:
        number = float(value)
    except ValueError:
        return None
    if not 0 <= number < math.inf:
        return None
    number = number if key == "wall_seconds" else int(number)
    return number if number or key == "tool_calls" else None


def _pairs(file: str, text: str) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            key, equals, value = stripped.partition("=")
            if not equals:
                raise BadControlFile(file, [Mistake("NoValue", number, key)])
            yield number, key.strip(), value.strip()

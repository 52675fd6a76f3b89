"""JSON as RFC 8259 has it, both ways: no NaN, no Infinity, no lone surrogates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn


def parse_json(text: str | bytes) -> Any:
    """ValueError for what isn't JSON, and for nesting too deep to read."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def dump_json(value: Any) -> str:
    """Compact; keys stay in the caller's order. ValueError for what JSON can't say."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
        text.encode()
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return text


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON value")


def _plain(value: object) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is not a JSON value")

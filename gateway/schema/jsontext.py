"""Strict JSON (RFC 8259), both ways: no NaN, no Infinity, no lone surrogates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn


def parse_json(text: str | bytes) -> Any:
    """Raises ValueError for text that isn't JSON or is nested too deeply."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def dump_json(value: Any, *, sort_keys: bool = False) -> str:
    """Writes compact JSON. Raises ValueError for a value that isn't JSON.

    sort_keys: equal values become equal bytes, whatever the order in which their keys were added.
    """
    try:
        text = json.dumps(
            value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain, sort_keys=sort_keys
        )
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

"""Strict JSON (RFC 8259), both ways: no NaN, no Infinity, no lone surrogates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from normalizers.values.strict_json import loads as parse_json

__all__ = ["dump_json", "parse_json"]


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


def _plain(value: object) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is not a JSON value")

"""Strict JSON (RFC 8259) that every reader of JSON reads alike."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any, NoReturn


class TooDeep(ValueError):
    """The text is nested more deeply than Python reads."""


def loads(text: str | bytes) -> Any:
    """Raises ValueError for text that isn't JSON, for a number that is NaN, infinite or larger than a double, for an
    integer that is longer than Python reads, and TooDeep.
    """
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise TooDeep("it is nested too deeply") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON value")


def _finite(digits: str) -> float:
    value = float(digits)
    return value if isfinite(value) else _refuse(digits)

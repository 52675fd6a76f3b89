"""Extracts a custom tool's input from the function call that stands for it in chat."""

from __future__ import annotations

import json as stdlib_json
import re
from typing import Any

import msgspec

from gateway.wire.chat import decode

_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_PARTIAL = re.compile(r'\s*(\{\s*("(i(n(p(u(t("(\s*(:\s*)?)?)?)?)?)?)?)?)?)?')
_WHOLE = re.compile(r'(?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
_HIGH = re.compile(r"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})\Z")
"""An escape at the end; two backslashes before a `u` are an escape of their own."""


class InputReader:
    """Reads `{"input": "…"}` incrementally: `feed` returns the new text, `finish` the whole input.

    Arguments of another shape become the input unchanged; then `feed` returns "".
    """

    def __init__(self) -> None:
        self._arguments = ""
        self._texts: list[str] = []
        self._at: int | None = None
        self._other_shape = False

    def feed(self, json: str) -> str:
        self._arguments += json
        if self._at is None:
            if self._other_shape:
                return ""
            if (opening := _OPENING.match(self._arguments)) is None:
                self._other_shape = _PARTIAL.fullmatch(self._arguments) is None
                return ""
            self._at = opening.end()
        found = _WHOLE.match(self._arguments, self._at)
        assert found is not None
        raw, end = found[0], found.end()
        if (half := _HIGH.search(raw)) is not None:
            # Half of a surrogate pair: wait for the other escape.
            raw, end = raw[: half.start(1)], self._at + half.start(1)
        self._at = end
        self._texts.append(text := _unescaped(raw))
        return text

    def finish(self) -> str:
        try:
            value: Any = decode(self._arguments)
        except msgspec.DecodeError:
            return "".join(self._texts) if self._at is not None else self._arguments
        text = value.get("input", None if value else "") if isinstance(value, dict) else None
        return text if isinstance(text, str) else self._arguments


def _unescaped(raw: str) -> str:
    """Decodes the inside of a JSON string. Tolerates raw line breaks and lone surrogates, which models write."""
    text: str = stdlib_json.loads(f'"{raw}"', strict=False)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

"""The input of a custom tool, out of the function call that a chat model makes of it."""

from __future__ import annotations

import json as stdlib_json
import re
from typing import Any

import msgspec

from gateway.wire.chat import decode

_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_PARTIAL = re.compile(r'\s*(\{\s*("(i(n(p(u(t("(\s*(:\s*)?)?)?)?)?)?)?)?)?)?')
_WHOLE = re.compile(r'(?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
_HIGH = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}$")


class InputReader:
    """Reads `{"input": "…"}` as it comes: `feed` gives the text so far unread, `finish` all of it.

    Arguments of another shape are the input as they stand; then `feed` gives nothing.
    """

    def __init__(self) -> None:
        self._arguments = ""
        self._texts: list[str] = []
        self._at: int | None = None
        self._lost = False
        self._ended = False

    def feed(self, json: str) -> str:
        self._arguments += json
        if self._at is None:
            if self._lost:
                return ""
            if (opening := _OPENING.match(self._arguments)) is None:
                self._lost = _PARTIAL.fullmatch(self._arguments) is None
                return ""
            self._at = opening.end()
        if self._ended:
            return ""
        found = _WHOLE.match(self._arguments, self._at)
        assert found is not None
        raw, end = found[0], found.end()
        if _HIGH.search(raw):
            # Half of a character: the other escape is still to come.
            raw, end = raw[:-6], end - 6
        self._at = end
        self._ended = self._arguments[end : end + 1] == '"'
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
    """Of the inside of a JSON string, in which a model may have left raw line breaks and half characters."""
    text: str = stdlib_json.loads(f'"{raw}"', strict=False)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

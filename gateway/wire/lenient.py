"""Reads an engine's JSON, also where it is none: half characters, invalid UTF-8, numbers that JSON doesn't have.

An engine that streams token by token may cut a character in two: an emoji into the escapes of its two surrogates, or
its UTF-8 into single bytes. The halves are joined, whether they stand side by side or in two payloads of a stream. A
half without the other becomes U+FFFD, as WHATWG's Encoding Standard has it. Pure.
"""

from __future__ import annotations

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Iterator
from itertools import islice, pairwise
from math import isfinite
from typing import Any

import msgspec

from gateway.wire.values import STEP

BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What the strict decoders of msgspec raise."""

LEAST = -9999.0
"""For minus infinity: how OpenAI writes the logarithm of a probability of zero."""

_TEXTS = frozenset(("content", "reasoning_content", "reasoning", "thinking", "arguments", "text", "response"))
"""Fields that clients concatenate, so that half a character may wait for its other half."""
_AROUND = frozenset(("choices", "delta", "message", "tool_calls", "function"))
"""What such fields stand in."""

MAX_REPAIRED = 8 * 1024 * 1024
"""Bytes of a payload that is repaired, which takes up to ten times as much memory. No model writes that much text."""
MAX_INVALID = 100_000
"""Bytes of a payload that aren't UTF-8: each becomes the three of U+FFFD."""

_DIGITS = 20
"""Longer integers fit into no client's 64 bits."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_PAIR_OF_HALVES = re.compile("([\ud800-\udbff])([\udc00-\udfff])")
_INVALID = re.compile("[\udc80-\udcff]")
_HALVES = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""Surrogates without their other half. Those that are left out stand for invalid bytes."""
_ESCAPE = re.compile(
    r"\\(?:u(d[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}|d[89a-f][0-9a-f]{2})|.)", re.IGNORECASE | re.DOTALL
)
_PAIR = len(r"\ud83d\ude00")
_COMPLETE = re.compile(
    r"(?:[^\\]|\\[^u]|\\u(?!d[89ab])[0-9a-f]{4}"
    r"|\\ud[89ab][0-9a-f]{2}(?:\\u(?!d[89ab])[0-9a-f]{4}|(?=[^\\]|\\[^u]|\\ud[89ab])))*",
    re.IGNORECASE | re.DOTALL,
)
"""JSON up to an escape that may go on."""
_REPLACEMENT = "\\ufffd"

_utf8 = getincrementaldecoder("utf-8")
_strict = msgspec.json.Decoder().decode
Path = tuple[str | int, ...]


class LenientReader:
    """Reads the payloads of one stream, or one whole answer."""

    __slots__ = ("_held", "repaired")

    def __init__(self) -> None:
        self._held: dict[Path, str] = {}
        """Halves of characters, by the text that they end."""
        self.repaired = False
        """Whether any payload so far wasn't JSON."""

    def read(self, payload: bytes, *, last: bool = False) -> Any:
        """The value of the next payload. last: no other follows. Raises as msgspec's decoder does."""
        if not self._held:
            try:
                return _strict(payload)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                failure: Exception = error
                self.repaired = True
        if len(payload) > MAX_REPAIRED:
            raise msgspec.DecodeError(f"it has an error, and more than {MAX_REPAIRED >> 20} MB, which aren't repaired")
        # Bytes that aren't UTF-8 become lone surrogates.
        text = payload.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
        if next(islice(_INVALID.finditer(text), MAX_INVALID, None), None) is not None:
            raise msgspec.DecodeError(f"more than {MAX_INVALID} of its bytes are not UTF-8")
        try:
            body = _decoder.decode(text)
        except json.JSONDecodeError as error:
            raise (msgspec.DecodeError(str(error)) if self._held else failure) from None
        return self._value(body, (), last=last)

    def rest(self) -> dict[str, Any] | None:
        """What is still held at the end of a stream, as one more payload."""
        body: dict[str, Any] = {}
        self._release(body, ())
        return body or None

    def _value(self, value: Any, path: Path, *, last: bool) -> Any:
        if isinstance(value, str):
            return self._text(value, path, last=last or not _streams(path))
        if isinstance(value, list):
            return [self._value(each, (*path, place), last=last) for place, each in _placed(value)]
        if not isinstance(value, dict):
            return value
        made = {joined(name)[0]: self._value(inner, (*path, name), last=last) for name, inner in value.items()}
        if self._held and (made.get("finish_reason") or True in (made.get("done"), made.get("stop"))):
            self._release(made, path)
        return made

    def _text(self, text: str, path: Path, *, last: bool) -> str:
        if not text and not last:
            return text
        clean, held = joined(self._held.pop(path, "") + text, last=last)
        if held:
            self._held[path] = held
        return clean

    def _release(self, node: dict[str, Any], path: Path) -> None:
        """Appends what is held below the node to its texts."""
        for each in [each for each in self._held if each[: len(path)] == path]:
            _append(node, each[len(path) :], joined(self._held.pop(each))[0])


def joined(text: str, *, last: bool = True) -> tuple[str, str]:
    """The text with its half characters joined, or replaced; and the half at its end. last: nothing follows it."""
    if _SURROGATE.search(text) is None:
        return text, ""
    held = ""
    if not last and "\ud800" <= text[-1:] <= "\udbff":
        text, held = text[:-1], text[-1]
    decoder = _utf8("replace")
    clean = []
    for piece in _pieces(text):
        # The codec of UTF-16 joins pairs, too, but raises a costly exception for each half.
        whole = _HALVES.sub("\ufffd", _PAIR_OF_HALVES.sub(_character, piece))
        clean.append(decoder.decode(whole.encode("utf-8", "surrogateescape")))
    if last or held:
        clean.append(decoder.decode(b"", final=True))
    return "".join(clean), held or decoder.getstate()[0].decode("utf-8", "surrogateescape")


def _pieces(text: str) -> Iterator[str]:
    """The text, no pair of halves of which is cut; other threads may run after each piece."""
    at = 0
    while at < len(text):
        end = at + STEP
        if _PAIR_OF_HALVES.match(text, end - 1):
            end += 1
        yield text[at:end]
        at = end


def _character(found: re.Match[str]) -> str:
    return chr(0x10000 + ((ord(found[1]) - 0xD800) << 10) + ord(found[2]) - 0xDC00)


def without_half_escapes(written: str) -> str:
    """JSON, or a part of it, whose escapes of surrogates all come in pairs. The others become U+FFFD."""
    written, _ = joined(written)
    if "\\ud" not in written and "\\uD" not in written:
        return written
    return _ESCAPE.sub(lambda found: _REPLACEMENT if found[1] and len(found[1]) == 4 else found[0], written)


class EscapeJoiner:
    """`without_half_escapes` for JSON that comes in fragments."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = ""
        """An escape, or a pair of them, that may be incomplete."""

    def feed(self, fragment: str) -> str:
        if not self._held and "\\" not in fragment:
            return joined(fragment)[0]
        text = self._held + fragment
        found = _COMPLETE.match(text)
        end = found.end() if found is not None else 0
        if len(text) - end >= _PAIR:  # no escape of JSON
            end = len(text)
        self._held = text[end:]
        return without_half_escapes(text[:end])

    def finish(self) -> str:
        held, self._held = self._held, ""
        return without_half_escapes(held)


def _integer(digits: str) -> int | None:
    return int(digits) if len(digits) <= _DIGITS else None


def _float(digits: str) -> float | None:
    value = float(digits)
    return value if isfinite(value) else _constant("-Infinity" if value < 0 else "Infinity")


def _constant(name: str) -> float | None:
    return LEAST if name == "-Infinity" else None


# Also takes control characters within texts.
_decoder = json.JSONDecoder(strict=False, parse_int=_integer, parse_float=_float, parse_constant=_constant)


def _streams(path: Path) -> bool:
    """Whether clients concatenate the texts at this place."""
    return bool(path) and path[-1] in _TEXTS and all(isinstance(each, int) or each in _AROUND for each in path[:-1])


def _placed(values: list[Any]) -> Iterator[tuple[int, Any]]:
    """Each value with its `index`, or else its position."""
    for position, value in enumerate(values):
        index = value.get("index") if isinstance(value, dict) else None
        yield (index if isinstance(index, int) else position), value


def _append(node: Any, path: Path, text: str) -> None:
    """Appends to the text at the path, which is made where it is missing."""
    for part, following in pairwise(path):
        kind = dict if isinstance(following, str) else list
        if isinstance(part, str):
            inner = node.get(part)
        else:
            inner = next((value for place, value in _placed(node) if place == part), None)
        if not isinstance(inner, kind):
            inner = kind() if isinstance(part, str) else {"index": part}
            if isinstance(part, str):
                node[part] = inner
            else:
                node.append(inner)
        node = inner
    before = node.get(path[-1])
    node[path[-1]] = (before if isinstance(before, str) else "") + text

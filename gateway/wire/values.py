"""Bounds how many values a request may have, by a look at its bytes: decoding, translating and repairing cost far more
for each value than for each byte of a text."""

from __future__ import annotations

import re
from codecs import getincrementaldecoder

from gateway.errors import ProviderInvalidRequest

MAX_VALUES = 50_000
"""Objects, arrays and what they hold in one request. An agent's conversation of a million tokens has about half."""
MAX_TOKENS = 500_000
"""The same for a request whose prompt may be a list of tokens, and for an engine's answer, which may hold the
probabilities of other tokens."""
STEP = 64 * 1024
"""Bytes to look at before other threads may run."""

_WIDE = re.compile(rb"[\xf0-\xf4]|\\u[dD][89abAB]").search
MAX_WIDE = 4 * 1024 * 1024
"""Bytes of texts with a character beyond U+FFFF, such as an emoji: Python needs four bytes for each of their
characters. Above any context window."""

_STRUCTURE = b",[{"
"""What each value of an object or array but one has before it, and each object or array begins with."""


def check(body: bytes, maximum: int = MAX_VALUES) -> None:
    """Before a body is decoded. Takes at most a millisecond for each STEP.

    Raises ProviderInvalidRequest (413) for more than `maximum` values, UnicodeDecodeError for what isn't UTF-8.
    """
    if exceeds(body, maximum):
        raise ProviderInvalidRequest(
            f"the request body has more than {maximum} JSON values: send fewer messages, parts, items or tools",
            code="too_many_values",
            status=413,
        )
    if not body.isascii():
        # The decoder of JSON skips fields that it doesn't know, and engines may crash on invalid UTF-8 in them.
        decoder = getincrementaldecoder("utf-8")()
        for at in range(0, len(body), STEP):  # the whole as a string could take four times the memory
            decoder.decode(body[at : at + STEP])
        decoder.decode(b"", final=True)


def check_texts(body: bytes) -> None:
    """Before a body is decoded that may have more values than MAX_VALUES: each token takes a few bytes, a text 60.

    Raises ProviderInvalidRequest (413) for more texts, keys included, than MAX_VALUES values can have: two each.
    """
    if len(body) > 4 * MAX_VALUES and body.count(b'"') - body.count(b'\\"') > 4 * MAX_VALUES:
        raise ProviderInvalidRequest(
            f"the request body has more than {2 * MAX_VALUES} JSON values that are texts: send fewer texts",
            code="too_many_values",
            status=413,
        )


def check_width(body: bytes) -> None:
    """Before a body is decoded into texts. Raises ProviderInvalidRequest (413) for more than MAX_WIDE."""
    if len(body) > MAX_WIDE and _wide(body) > MAX_WIDE:
        raise ProviderInvalidRequest(
            f"texts with emoji or other characters beyond U+FFFF have more than {MAX_WIDE >> 20} MB: send less text",
            code="request_too_large",
            status=413,
        )


def exceeds(body: bytes, maximum: int) -> bool:
    """Whether there are more values."""
    return len(body) > maximum and _in_any(body, maximum) > maximum and _outside_strings(body, maximum) > maximum


def _in_any(body: bytes, maximum: int) -> int:
    """An upper bound, which counts in texts, too. Ends above `maximum`."""
    found = 0
    for at in range(0, len(body), STEP):
        piece = body[at : at + STEP]
        found += len(piece) - len(piece.translate(None, _STRUCTURE))
        if found > maximum:
            break
    return found


def _wide(body: bytes) -> int:
    """Bytes of texts with such a character, as UTF-8 or as an escape. Ends above MAX_WIDE."""
    found = size = inside = 0
    wide, rest = False, b""
    for at in range(0, len(body), STEP):
        piece = rest + body[at : at + STEP]
        # An escape may go on in the next piece.
        rest = _begun_escape(piece)
        plain = piece.removesuffix(rest).replace(b"\\\\", b"").replace(b'\\"', b"")
        for number, part in enumerate(plain.split(b'"')):
            if number:
                found += size if inside and wide else 0
                inside, size, wide = inside ^ 1, 0, False
            if inside:
                size += len(part)
                wide = wide or _WIDE(part) is not None
        if found + (size if wide else 0) > MAX_WIDE:
            return MAX_WIDE + 1
    return found


def _begun_escape(piece: bytes) -> bytes:
    """The end of a piece from a backslash on whose escape isn't complete."""
    begun = piece[max(0, len(piece) - 5) :].rfind(b"\\")
    if begun < 0:
        return b""
    begun += max(0, len(piece) - 5)
    escaped = (begun - len(piece[: begun + 1].rstrip(b"\\"))) % 2  # it is itself escaped
    if escaped:
        return b""
    length = 6 if piece[begun + 1 : begun + 2] == b"u" else 2
    return piece[begun:] if len(piece) - begun < length else b""


def _outside_strings(body: bytes, maximum: int) -> int:
    """Ends above `maximum`."""
    found, inside, rest = 0, 0, b""
    for at in range(0, len(body), STEP):
        piece = rest + body[at : at + STEP]
        # An escape may go on in the next piece.
        rest = _begun_escape(piece)
        plain = piece.removesuffix(rest).replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = plain.split(b'"')
        structure = b"".join(parts[inside::2])
        found += len(structure) - len(structure.translate(None, _STRUCTURE))
        if found > maximum:
            break
        inside ^= (len(parts) - 1) % 2
    return found

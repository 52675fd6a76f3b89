"""Literals as models write them, in Python or JSON: numbers, constants, string escapes."""

from __future__ import annotations

import math
import re
import sys
import unicodedata
from json.encoder import encode_basestring

CONSTANTS = {
    "True": "true",
    "true": "true",
    "TRUE": "true",
    "False": "false",
    "false": "false",
    "FALSE": "false",
    "None": "null",
    "none": "null",
    "null": "null",
    "NONE": "null",
    "NULL": "null",
    "Null": "null",
}

_MAX_DIGITS = sys.int_info.default_max_str_digits
_DECIMAL = re.compile(r"([+-]?)(\d(?:_?\d)*)?(?:(\.)(\d(?:_?\d)*)?)?([eE][+-]?\d(?:_?\d)*)?", re.ASCII)
_RADIX = re.compile(r"([+-]?)(0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+)")
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|N\{([A-Za-z0-9 \-]{1,100})\}"
    r"|([0-7]{1,3})|(\r\n|[\s\S]))"
)
_ESCAPE_START = re.compile(
    r"\\(?:x[0-9a-fA-F]?|u[0-9a-fA-F]{0,3}|U[0-9a-fA-F]{0,7}|N(?:\{[A-Za-z0-9 \-]{0,100})?|[0-7]{1,2}|\r)?\Z"
)


def json_string_body(text: str) -> str:
    """The text between the quotes of a JSON string."""
    return encode_basestring(text)[1:-1]


def json_number(text: str) -> str | None:
    """The JSON number for a number in any Python spelling, digit for digit; None if it isn't one.

    Repairs leading zeros, ``+``, ``_``, ``1.`` and ``.5``. Refuses a value beyond a double's range,
    which JSON readers would turn into infinity, and an integer that is longer than Python reads.
    """
    if text.isdigit() and text.isascii() and text[0] != "0" and len(text) <= _MAX_DIGITS:
        return text
    if match := _DECIMAL.fullmatch(text):
        sign, whole, dot, fraction, exponent = match.groups()
        if whole is None and fraction is None:
            return None
        number = ("-" if sign == "-" else "") + ((whole or "0").replace("_", "").lstrip("0") or "0")
        if dot:
            number += "." + (fraction or "0").replace("_", "")
        if exponent:
            number += exponent.replace("_", "")
        beyond = math.isinf(float(number)) if dot or exponent else len(number) > _MAX_DIGITS
        return None if beyond else number
    if match := _RADIX.fullmatch(text):
        try:
            return ("-" if match[1] == "-" else "") + str(int(match[2], 0))
        except ValueError:
            return None
    return None


def python_escape(text: str, pos: int, final: bool) -> tuple[str, int] | None:
    """Decode the escape at `pos` by CPython's rules: returns it for the body of a JSON string, and its end.

    An unknown escape stays as written. None if more text is needed.
    """
    if not final and _ESCAPE_START.match(text, pos):
        return None
    match = _ESCAPE.match(text, pos)
    if match is None:
        return "\\\\", pos + 1
    x, u, wide, name, octal, char = match.groups()
    end = match.end()
    if u:
        return _code_unit(int(u, 16)), end
    if code := x or wide:
        value = int(code, 16)
        if value <= 0x10FFFF:
            return _code_unit(value), end
    elif octal:
        return _code_unit(int(octal, 8)), end
    elif name:
        try:
            return json_string_body(unicodedata.lookup(name)), end
        except KeyError:
            pass
    elif char in ("\n", "\r\n"):
        return "", end
    elif char in ("\\", "'", '"'):
        return json_string_body(char), end
    elif char in _SIMPLE:
        return json_string_body(_SIMPLE[char]), end
    return "\\\\", pos + 1


def _code_unit(value: int) -> str:
    # A surrogate stays an escape: JSON readers join the halves of a pair themselves.
    return f"\\u{value:04x}" if 0xD800 <= value <= 0xDFFF else json_string_body(chr(value))

"""Text from models, pages, servers and clients that a terminal may show. Pure."""

from __future__ import annotations

from reprlib import Repr

_CONTROLS = [code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"]
_REPLACED = dict.fromkeys(_CONTROLS, "\ufffd")
_ESCAPED = {code: f"\\u{code:04x}" for code in _CONTROLS if code >= 0x7F}

_repr = Repr()
_repr.maxstring = _repr.maxother = 100


def short(value: object) -> str:
    """What a client sent, for an error: its repr, of which a long one keeps its beginning and end."""
    return _repr.repr(value)


def printable(text: str) -> str:
    """Replaces control characters, so that the text can't steer the terminal. Keeps line breaks and tabs."""
    return text.translate(_REPLACED)


def printable_json(text: str) -> str:
    """The same JSON, with the control characters escaped that JSON allows: U+007F to U+009F."""
    return text.translate(_ESCAPED)

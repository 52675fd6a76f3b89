"""Text from models and clients on a terminal."""

from __future__ import annotations

_CONTROL = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """Replaces control characters, so that the text can't steer the terminal. Keeps line breaks and tabs."""
    return text.translate(_CONTROL)

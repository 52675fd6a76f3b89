"""Hides secrets in text, also as JSON or a URL spells them: what came from a variable or the keychain reaches no log,
no file and no client."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import SecretStr

HIDDEN = "[secret]"
LONG = 8
"""Characters from which on a secret is hidden inside other words, too."""
SHORT = 64 * 1024
"""Characters of the longest text, such as an error, in which other spellings of a secret are looked for."""
_NEVER = "(?!)"
"""A pattern that matches nothing."""


def hider(secrets: Iterable[SecretStr]) -> Callable[[str], str]:
    """A function that replaces the secrets in a text."""
    return _hider(frozenset(secret.get_secret_value() for secret in secrets))


@lru_cache(maxsize=64)
def _hider(secrets: frozenset[str]) -> Callable[[str], str]:
    longest_first = sorted(secrets, key=len, reverse=True)
    plain = re.compile("|".join(map(_pattern, longest_first)) or _NEVER)

    @cache
    def spelled() -> re.Pattern[str]:  # it takes a while to make, and to search with
        return re.compile("|".join(_pattern(secret, _spelled) for secret in longest_first) or _NEVER)

    def hide(text: str) -> str:
        told = len(text) <= SHORT and ("\\" in text or "%" in text)
        return (spelled() if told else plain).sub(HIDDEN, text)

    return hide


def _pattern(secret: str, written: Callable[[str], str] = re.escape) -> str:
    """Hides a short secret only as a whole word: a longer word with it reveals nothing."""
    found = written(secret)
    return found if len(secret) >= LONG else rf"(?<!\w){found}(?!\w)"


def _spelled(secret: str) -> str:
    """Each character as it is; escaped in JSON, also in JSON within JSON; or in a URL."""
    return "".join(map(_spellings, secret)) if len(secret) <= 512 else re.escape(secret)


@cache
def _spellings(char: str) -> str:
    plain, code = re.escape(char), _hexadecimal(f"{ord(char):04x}")
    url = "".join(f"%(?:25){{0,4}}{_hexadecimal(f'{byte:02x}')}" for byte in char.encode("utf-8", "surrogatepass"))
    return rf"(?:{plain}|\\{{1,8}}(?:{plain}|u{code})|{url})"


def _hexadecimal(digits: str) -> str:
    return "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in digits)

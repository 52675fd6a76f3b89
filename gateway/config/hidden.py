"""Hides secrets in text: what came from a variable or the keychain reaches no log, no file and no client."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import SecretStr

HIDDEN = "[secret]"
LONG = 8
"""Characters from which on a secret is hidden inside other words, too."""
_NEVER = "(?!)"
"""A pattern that matches nothing."""


def hider(secrets: Iterable[SecretStr]) -> Callable[[str], str]:
    """A function that replaces the secrets in a text."""
    return _hider(frozenset(secret.get_secret_value() for secret in secrets))


@lru_cache(maxsize=64)
def _hider(secrets: frozenset[str]) -> Callable[[str], str]:
    patterns = map(_pattern, sorted(secrets, key=len, reverse=True))
    found = re.compile("|".join(patterns) or _NEVER)
    return lambda text: found.sub(HIDDEN, text)


def _pattern(secret: str) -> str:
    """Hides a short secret only as a whole word: a longer word with it reveals nothing."""
    found = re.escape(secret)
    return found if len(secret) >= LONG else rf"(?<!\w){found}(?!\w)"

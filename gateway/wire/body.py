"""A request's body to a checked value."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from gateway.errors import ProviderInvalidRequest

T = TypeVar("T")


def read(decode: Callable[[bytes], T], body: bytes) -> T:
    """`decode(body)`. Raises ProviderInvalidRequest, which names the field at fault."""
    try:
        if not body.isascii():
            # Fields that are kept unread are not checked by the decoder, and engines fail on them badly.
            body.decode()
        return decode(body)
    except (ValueError, RecursionError) as error:  # msgspec's errors and UnicodeDecodeError are ValueErrors
        raise refusal(error) from None


def refusal(error: Exception) -> ProviderInvalidRequest:
    """What is wrong with a body that could not be decoded."""
    if isinstance(error, msgspec.ValidationError):
        reason, _, where = str(error).partition(" - at `$")
        param = where.rstrip("`").lstrip(".") or None
        place = f"{param}: " if param else "the request body: "
        return ProviderInvalidRequest(f"{place}{reason[:1].lower()}{reason[1:]}", param=param)
    if isinstance(error, UnicodeDecodeError):
        return ProviderInvalidRequest("the request body is not valid UTF-8")
    if isinstance(error, RecursionError):
        return ProviderInvalidRequest("the request body is not valid: it is nested too deeply")
    return ProviderInvalidRequest(f"the request body is not valid JSON: {error}")

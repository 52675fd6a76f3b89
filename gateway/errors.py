"""The one error table, and how long to wait before trying again.

    GatewayError                                          a retry
    ├── ProviderAuthentication           401  EACCES
    ├── ProviderInvalidModel             404  ENOENT
    ├── ProviderModelNotLoaded           503  EAGAIN      helps, but for the codes of LASTING
    ├── ProviderUnavailable              503  EHOSTDOWN   helps, but for the codes of LASTING
    ├── ProviderRateLimit                429  EBUSY       helps, but for the codes of LASTING
    ├── ProviderInvalidRequest           400  EINVAL
    ├── ProviderUnsupportedContentBlock  400  EOPNOTSUPP
    ├── ProviderInvalidResponse          502  EPROTO
    ├── StructuredOutputInvalid          422  EBADMSG
    └── InternalError                    500  EIO

The first nine are the categories of OpenArmature §7; the last is a bug of ours.
Every API renders an error from the columns here and from nowhere else. The header `x-should-retry` says whether a retry
helps; if it doesn't, the error avoids statuses that clients retry anyway, and has no `Retry-After`.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from math import ceil, isfinite
from typing import Any, ClassVar, Literal, NamedTuple

Category = Literal[
    "provider_authentication",
    "provider_invalid_model",
    "provider_model_not_loaded",
    "provider_unavailable",
    "provider_rate_limit",
    "provider_invalid_request",
    "provider_unsupported_content_block",
    "provider_invalid_response",
    "structured_output_invalid",
    "internal_error",
]


LASTING = frozenset(
    (
        *("engine_missing", "engine_misconfigured", "hub_missing", "insufficient_quota", "keys_unreadable"),
        *("no_memory", "secrets_unavailable"),
    )
)
"""Codes of errors in transient categories that last until a person acts: no retry helps."""

LASTING_STATUS = 424
"""Replaces a 503, which some clients retry for minutes whatever the headers say."""


class GatewayError(Exception):
    """An error with a category. `str(error)` is safe to show to a client.

    code: overrides the class's machine-readable code (e.g. `context_length_exceeded`).
    param: the request field at fault, as OpenAI writes it (`messages[0].role`).
    retry_after: seconds after which a retry may succeed.
    transient: a retry may succeed.
    lasting: its category is transient but its cause isn't; another model may answer.
    status: overrides the class's HTTP status where HTTP is more precise than the category (413, 405).
    details: further public fields of the error body (e.g. both token counts).
    logged: the request log already has it, as the outcome of a model's answer.
    """

    category: ClassVar[Category]
    default_status: ClassVar[int]
    type: ClassVar[str]
    default_code: ClassVar[str]
    errno: ClassVar[int]
    exit_code: ClassVar[int]
    transient: bool = False
    lasting: bool = False
    logged: bool = False

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        status: int | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.param = param
        self.retry_after = retry_after
        self.status = status or self.default_status
        self.details = dict(details or {})
        if self.transient and self.code in LASTING:
            self.last()

    def last(self) -> None:
        """Marks the error as one that no retry can fix."""
        self.transient, self.lasting, self.retry_after = False, True, None
        if self.status == 503:
            self.status = LASTING_STATUS

    def body(self) -> dict[str, Any]:
        """The error in OpenAI's shape: `{"error": {message, type, code, param, category, …}}`."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "code": self.code,
                "param": self.param,
                "category": self.category,
                **self.details,
            }
        }

    def headers(self) -> list[tuple[bytes, bytes]]:
        told = [(b"x-should-retry", b"true" if self.transient else b"false")]
        if self.retry_after is not None:
            told.append((b"retry-after", str(max(1, ceil(self.retry_after))).encode()))
        return told


KEY_NEEDED = "a valid API key is needed: send it as 'Authorization: Bearer KEY'"
"""The gateway's own refusal of a caller, unlike a server's refusal of the gateway."""


class ProviderAuthentication(GatewayError):
    category = "provider_authentication"
    default_status = 401
    type = "authentication_error"
    default_code = "invalid_api_key"
    errno = errno.EACCES
    exit_code = 13

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*super().headers(), (b"www-authenticate", b"Bearer")]


class ProviderInvalidModel(GatewayError):
    category = "provider_invalid_model"
    default_status = 404
    type = "invalid_request_error"
    default_code = "model_not_found"
    errno = errno.ENOENT
    exit_code = 1


class WeightsMissing(ProviderInvalidModel):
    """A configured model whose weights aren't there: no retry helps, but another model may answer."""

    lasting = True


class ProviderModelNotLoaded(GatewayError):
    category = "provider_model_not_loaded"
    default_status = 503
    type = "server_error"
    default_code = "model_not_loaded"
    errno = errno.EAGAIN
    exit_code = 69
    transient = True


class ProviderUnavailable(GatewayError):
    """The engine can't be reached, or (status 502) it answered badly."""

    category = "provider_unavailable"
    default_status = 503
    type = "server_error"
    default_code = "engine_unavailable"
    errno = errno.EHOSTDOWN
    exit_code = 69
    transient = True


class ProviderRateLimit(GatewayError):
    category = "provider_rate_limit"
    default_status = 429
    type = "rate_limit_error"
    default_code = "rate_limit_exceeded"
    errno = errno.EBUSY
    exit_code = 69
    transient = True


class ProviderInvalidRequest(GatewayError):
    category = "provider_invalid_request"
    default_status = 400
    type = "invalid_request_error"
    default_code = "invalid_request"
    errno = errno.EINVAL
    exit_code = 2


class ProviderUnsupportedContentBlock(GatewayError):
    category = "provider_unsupported_content_block"
    default_status = 400
    type = "invalid_request_error"
    default_code = "unsupported_content_block"
    errno = errno.EOPNOTSUPP
    exit_code = 2


class ImagesUnsupported(ProviderUnsupportedContentBlock):
    """The model reads no images at all, whatever they are."""


class ProviderInvalidResponse(GatewayError):
    category = "provider_invalid_response"
    default_status = 502
    type = "server_error"
    default_code = "invalid_response"
    errno = errno.EPROTO
    exit_code = 1


class StructuredOutputInvalid(GatewayError):
    category = "structured_output_invalid"
    default_status = 422
    type = "invalid_request_error"
    default_code = "structured_output_invalid"
    errno = errno.EBADMSG
    exit_code = 1


class InternalError(GatewayError):
    """A bug of ours: the message never carries the cause, the log does."""

    category = "internal_error"
    default_status = 500
    type = "server_error"
    default_code = "internal_error"
    errno = errno.EIO
    exit_code = 70


CATEGORIES: Mapping[Category, type[GatewayError]] = {cls.category: cls for cls in GatewayError.__subclasses__()}


class Backoff(NamedTuple):
    """How long to wait before an attempt that follows failed ones.

    first, longest: seconds. growth: factor by which each further failure lengthens the wait, above 1.
    jitter: share of the wait that is random, from 0 (none) to 1 ("full jitter": anything up to the whole wait).
    """

    first: float
    longest: float
    growth: float = 2.0
    jitter: float = 0.0

    def delay(self, failures: int, at_least: float = 0.0) -> float:
        """Seconds to wait after so many failures in a row; 0.0 after none.

        at_least: seconds that the server asked for (`Retry-After`); jitter never shortens them.
        """
        if failures < 1:
            return at_least
        seconds = self.first
        for _ in range(failures - 1):
            seconds *= self.growth
            if seconds >= self.longest:
                break
        seconds = min(seconds, self.longest)
        if self.jitter:
            from random import random  # here, since most of what imports this module never waits

            seconds *= 1.0 - self.jitter * random()  # noqa: S311 - spreads load, guards nothing
        return max(seconds, at_least)


def retry_after(milliseconds: str | None, header: str | None) -> float | None:
    """Seconds until a retry, from a server's `retry-after-ms` (OpenAI's), or else its Retry-After; None if neither."""
    found = seconds_until_retry(milliseconds)
    return found / 1000 if found is not None else seconds_until_retry(header)


def seconds_until_retry(header: str | None) -> float | None:
    """A server's Retry-After header, a number or a date (RFC 9110 §10.2.3), as seconds from now; None if neither."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        from datetime import UTC, datetime  # here, since few servers send a date
        from email.utils import parsedate_to_datetime

        try:
            seconds = (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds()
        except (TypeError, ValueError, OverflowError):
            return None
    return max(0.0, seconds) if isfinite(seconds) else None

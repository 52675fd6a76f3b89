"""Errors of the object ABI with an errno of their own, and the errno and exit code of each error."""

from __future__ import annotations

import errno

from gateway.errors import (
    CATEGORIES,
    GatewayError,
    ProviderAuthentication,
    ProviderInvalidModel,
    ProviderInvalidRequest,
    ProviderRateLimit,
)


class NotConfigured(ProviderAuthentication):
    """Neither the environment nor the keychain has the key of the model's server."""


class NotPermitted(ProviderAuthentication):
    """The gateway's user, or the object's policy, may not do that."""


class NoDriver(ProviderInvalidRequest):
    """The object's route names no known driver, or the model's server supports none of them."""

    errno = errno.ENOSYS
    exit_code = 1


class TooLong(ProviderInvalidRequest):
    """A frame, an input or an answer exceeds its bound."""

    errno = errno.EMSGSIZE


class NotFound(ProviderInvalidModel):
    """No such object, session, event or run."""


class Busy(ProviderRateLimit):
    """Nothing was done. A retry may succeed."""

    errno = errno.EAGAIN


def code(error: GatewayError) -> str:
    """The name of the error's errno, as in error frames."""
    return errno.errorcode[error.errno]


GENERIC = 1

EXIT_CODES = {errno.errorcode[error.errno]: error.exit_code for error in CATEGORIES.values()} | {
    errno.errorcode[error.errno]: error.exit_code for error in (TooLong, Busy)
}
"""Code of an error frame → exit code. Any other code is GENERIC."""

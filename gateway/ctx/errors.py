"""What the ABI has an errno for and the categories haven't; and both as frames and exit codes."""

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
    """The key of the model's server is neither in the environment nor in the keychain."""


class NoDriver(ProviderInvalidRequest):
    """No driver of the object's route is there, or the model's server has none of them."""

    errno = errno.ENOSYS
    exit_code = 1


class TooLong(ProviderInvalidRequest):
    """A frame, an input or an answer exceeds its bound."""

    errno = errno.EMSGSIZE


class NotFound(ProviderInvalidModel):
    """No such object, session, event or run."""


class Busy(ProviderRateLimit):
    """Nothing was done; a later try may succeed."""

    errno = errno.EAGAIN


def code(error: GatewayError) -> str:
    """The name of the errno, as frames have it."""
    return errno.errorcode[error.errno]


GENERIC = 1

EXIT_CODES = {errno.errorcode[error.errno]: error.exit_code for error in CATEGORIES.values()} | {
    errno.errorcode[error.errno]: error.exit_code for error in (TooLong, Busy)
}
"""By the code of an error frame; any other is GENERIC."""

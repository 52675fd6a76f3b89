"""Secrets by reference: the file names where a secret is, and never contains it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from pydantic import SecretStr

from gateway.config.problems import BadValue

SERVICE = "ctxgate"
"""Service name of our secrets in the system's keychain."""

CURE = f"write ${{NAME}} and set that environment variable, or keychain:NAME after: keyring set {SERVICE} NAME"

_REFERENCE = re.compile(r"\$\{[A-Za-z_]\w*(:-)?\}|keychain:(?P<name>.+)")

_SENDABLE = re.compile(r"[!-~]([ -~]*[!-~])?")


def secret(written: str, value: str) -> SecretStr | None:
    """The secret that `written` refers to; `value` is `written` with its variable filled in. None if that is empty.

    Raises BadValue.
    """
    match = _REFERENCE.fullmatch(written)
    if match is None:
        raise BadValue("a secret can't be in the file", CURE)
    name = match["name"]
    return _sendable(value if name is None else _from_keychain(name))


def credential(name: str, environ: Mapping[str, str]) -> SecretStr | None:
    """A server's key by its credential's name: variable NAME_API_KEY, then the keychain. None if neither has it.

    Raises BadValue if the keychain can't be read, or if no HTTP header can carry the key.
    """
    variable = f"{name.upper().replace('-', '_')}_API_KEY"
    if found := environ.get(variable):
        return _sendable(found)
    keyring = _keyring()
    try:
        found = _lookup(keyring, f"cortexfs:{name}", "default", f"set {variable}")
    except BadValue as error:
        if not isinstance(error.__cause__, keyring.errors.NoKeyringError):
            raise
        found = None  # this system has no keychain
    return _sendable(found)


def _sendable(found: str | None) -> SecretStr | None:
    if found and not _SENDABLE.fullmatch(found):
        raise BadValue(
            "the secret has a line break or another character that no HTTP header can carry", "set it without that"
        )
    return SecretStr(found) if found else None


def _from_keychain(name: str) -> str:
    keyring = _keyring()
    if keyring is None:
        raise BadValue("keychain: needs the package keyring", "pip install keyring, or write ${NAME}")
    found = _lookup(keyring, SERVICE, name, "write ${NAME}")
    if found is None:
        raise BadValue(f"the keychain has no {name}", f"store it: keyring set {SERVICE} {name}")
    return found


def _keyring() -> Any:
    """None if it isn't installed."""
    try:
        return import_module("keyring")
    except ImportError:
        return None


def _lookup(keyring: Any, service: str, account: str, otherwise: str) -> str | None:
    if keyring is None:
        return None
    try:
        found = keyring.get_password(service, account)
    except keyring.errors.KeyringError as error:
        raise BadValue(f"the keychain can't be read ({type(error).__name__})", f"unlock it, or {otherwise}") from error
    return str(found) if found else None

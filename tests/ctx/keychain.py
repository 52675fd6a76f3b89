"""A real keyring backend that keeps its passwords in memory."""

from __future__ import annotations

from keyring.backend import KeyringBackend
from keyring.errors import KeyringLocked, PasswordDeleteError


class Memory(KeyringBackend):
    priority = 1

    def __init__(self, passwords: dict[tuple[str, str], str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._passwords = passwords

    def get_password(self, service: str, username: str) -> str | None:
        if service.endswith(":locked"):
            raise KeyringLocked("a person must unlock it")
        return self._passwords.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self._passwords[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        try:
            del self._passwords[service, username]
        except KeyError as error:
            raise PasswordDeleteError(username) from error

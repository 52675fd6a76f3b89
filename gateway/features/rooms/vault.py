"""Users' secrets, encrypted at rest with AES-256-GCM.

Tenant, user, id and provider are authenticated with each secret, so one row can't replace another.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import uuid
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, delete, insert, select
from sqlalchemy.exc import IntegrityError

from gateway.errors import ProviderAuthentication, ProviderInvalidRequest, ProviderUnavailable
from gateway.features.rooms.schemas import Secret, SecretShown, check_metadata
from gateway.features.rooms.tables import SECRETS
from gateway.features.rooms.transaction import now

if TYPE_CHECKING:
    from gateway.store import Store

KEYCHAIN_SERVICE, KEYCHAIN_NAME = "ctxgate", "rooms-secrets-key"
KEY_BYTES, NONCE_BYTES = 32, 12
MAX_SECRETS = 100
"""Per user."""


class Vault:
    """key: returns the 32-byte key; called once, on first use."""

    def __init__(self, store: Store, key: Callable[[], bytes]) -> None:
        self._store = store
        self._load = key
        self._key: bytes | None = None
        self._loading = asyncio.Lock()

    async def add(self, tenant: str, user: str, secret: Secret) -> SecretShown:
        """Raises ProviderInvalidRequest; 409 if the name is taken."""
        check_metadata(secret.metadata)
        provider = secret.metadata.get("provider")
        if provider is not None and not (
            isinstance(provider, str) and 1 <= len(provider) <= 128 and provider.isprintable()
        ):
            raise ProviderInvalidRequest("metadata.provider: must be a provider's name", param="metadata.provider")
        id = str(uuid.uuid4())
        sealed = await self._seal(secret.value, _bound_to(tenant, user, id, provider))
        row = {
            "id": id,
            "tenant": tenant,
            "user": user,
            "name": secret.name,
            "provider": provider,
            "kind": secret.kind,
            "metadata": secret.metadata,
            "sealed": sealed,
            "created_at": now(),
        }

        def write(connection: Connection) -> None:
            mine = select(SECRETS.c.name).where(SECRETS.c.tenant == tenant, SECRETS.c.user == user)
            names = set(connection.execute(mine).scalars())
            if secret.name in names:
                raise _taken(secret.name)
            if len(names) >= MAX_SECRETS:
                raise ProviderInvalidRequest(
                    f"a user may have {MAX_SECRETS} secrets: delete one", code="too_many_secrets"
                )
            try:
                connection.execute(insert(SECRETS), row)
            except IntegrityError:  # another gateway on the same database was faster
                raise _taken(secret.name) from None

        await self._store.write(write)
        return _shown(row)

    async def shown(self, tenant: str, user: str) -> list[SecretShown]:
        query = select(SECRETS).where(SECRETS.c.tenant == tenant, SECRETS.c.user == user).order_by(SECRETS.c.name)
        return await self._store.read(lambda connection: [_shown(row._mapping) for row in connection.execute(query)])

    async def delete(self, tenant: str, user: str, id: str) -> None:
        """Raises ProviderInvalidRequest (404)."""
        mine = delete(SECRETS).where(SECRETS.c.tenant == tenant, SECRETS.c.user == user, SECRETS.c.id == id)
        if not await self._store.write(lambda connection: connection.execute(mine).rowcount):
            raise ProviderInvalidRequest(f"no secret {id!r}", code="secret_not_found", status=404)

    async def key_for(self, tenant: str, user: str, provider: str) -> str:
        """The user's only secret for the provider.

        Raises ProviderAuthentication: code `provider_secret_missing` if there is none, `provider_secret_ambiguous` if
        there are several.
        """
        query = select(SECRETS).where(
            SECRETS.c.tenant == tenant, SECRETS.c.user == user, SECRETS.c.provider == provider
        )
        rows = await self._store.read(lambda connection: connection.execute(query).all())
        if not rows:
            message = f"user {user} has no secret for the provider {provider}: POST /api/user/secrets"
            raise ProviderAuthentication(message, code="provider_secret_missing")
        if len(rows) > 1:
            message = f"user {user} has {len(rows)} secrets for the provider {provider}: keep one"
            raise ProviderAuthentication(message, code="provider_secret_ambiguous")
        (row,) = rows
        return await self._open(row.sealed, _bound_to(tenant, user, row.id, provider))

    async def _seal(self, value: str, bound_to: bytes) -> bytes:
        cipher = await self._cipher()
        nonce = os.urandom(NONCE_BYTES)
        sealed: bytes = cipher.encrypt(nonce, value.encode(), bound_to)
        return nonce + sealed

    async def _open(self, sealed: bytes, bound_to: bytes) -> str:
        from cryptography.exceptions import InvalidTag

        cipher = await self._cipher()
        try:
            value: bytes = cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], bound_to)
        except InvalidTag:
            message = "the secret was encrypted with another key or altered: delete it and add it again"
            raise ProviderAuthentication(message, code="secret_unreadable") from None
        return value.decode()

    async def _cipher(self) -> Any:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            message = "secrets need the package cryptography: pip install 'ctxgate[rooms]'"
            raise ProviderUnavailable(message, code="secrets_unavailable") from None
        async with self._loading:  # else two first secrets would each make a key
            if self._key is None:
                self._key = await asyncio.to_thread(self._load)
        return AESGCM(self._key)


def key_of_file(path: Path) -> bytes:
    """The key in the file; creates a missing one. Raises ProviderUnavailable."""
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            if path.stat().st_mode & 0o077:
                raise _unavailable(f"others can read {path}: chmod 600") from None
            return _decode_key(path.read_bytes(), str(path))
        with open(descriptor, "wb") as file:
            file.write(_new_key())
            file.flush()
            os.fsync(file.fileno())
        return _decode_key(path.read_bytes(), str(path))
    except OSError as error:
        raise _unavailable(f"{path}: {error.strerror}") from error


def key_of_keychain() -> bytes:
    """The key in the system's keychain; creates a missing one. Raises ProviderUnavailable."""
    cure = "or name a key file: rooms.secret_key_file in config.yaml"
    try:
        keyring: Any = import_module("keyring")
    except ImportError:
        raise _unavailable(f"the system's keychain needs the package keyring; install it, {cure}") from None
    try:
        found = keyring.get_password(KEYCHAIN_SERVICE, KEYCHAIN_NAME)
        if not found:
            keyring.set_password(KEYCHAIN_SERVICE, KEYCHAIN_NAME, _new_key().decode())
            found = keyring.get_password(KEYCHAIN_SERVICE, KEYCHAIN_NAME)
    except keyring.errors.KeyringError as error:
        raise _unavailable(f"can't use the keychain ({type(error).__name__}): unlock it, {cure}") from error
    return _decode_key(str(found).encode(), "the keychain's key")


def _new_key() -> bytes:
    return base64.urlsafe_b64encode(os.urandom(KEY_BYTES))


def _decode_key(text: bytes, place: str) -> bytes:
    try:
        key = base64.urlsafe_b64decode(text.strip())
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise _unavailable(f"{place} is not a base64 key of {KEY_BYTES} bytes")
    return key


def _bound_to(tenant: str, user: str, id: str, provider: str | None) -> bytes:
    return "\0".join((tenant, user, id, provider or "")).encode()


def _shown(row: Any) -> SecretShown:
    return SecretShown(
        id=row["id"], name=row["name"], kind=row["kind"], metadata=row["metadata"], created_at=row["created_at"]
    )


def _taken(name: str) -> ProviderInvalidRequest:
    return ProviderInvalidRequest(f"name: a secret {name!r} already exists", code="secret_exists", status=409)


def _unavailable(message: str) -> ProviderUnavailable:
    return ProviderUnavailable(f"can't store secrets: {message}", code="secrets_unavailable")

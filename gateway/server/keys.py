"""API keys of callers: random, and stored as digests in one small file that is quick to read at the start."""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from gateway.errors import KEY_NEEDED, ProviderAuthentication, ProviderInvalidRequest, ProviderUnavailable
from gateway.server.principal import Principal
from gateway.wire.limits import Limits

FILE = "keys.json"
"""The file's name in the state folder; see `KeyFile`."""

PREFIX = "ctxgate_"
"""Begins every key, so that scanners for leaked keys recognise one."""

Scope = Literal["*", "models", "upstream", "rooms", "rooms:read", "operations", "operations:read"]
"""`models`: everything that no other scope covers. `operations`: /metrics and /-/, which may show others' prompts,
and to pull, delete, load and unload models; `operations:read`: GET alone. `rooms`: /llm/ and the user's secrets;
`rooms:read`: GET alone. `upstream`: any path of the models' own servers, below /upstream/."""

SCOPES: tuple[str, ...] = get_args(Scope)

_OPERATIONS = ("/metrics", "/-")
_WRITES = re.compile(r"(/v1)?/models/[^/]+/(un)?load|/api/(pull|delete)")
"""Paths of other APIs that decide for all callers what is on this machine and in its memory."""
_ROOMS = ("/llm/", "/api/user")
_UPSTREAM = "/upstream/"
MODEL_SCOPES = ("models", "upstream")
"""What makes models work, and counts towards a key's limits."""


def wanted(method: str, path: str) -> str:
    """The scope that a request needs."""
    if path.startswith(_OPERATIONS) or _WRITES.fullmatch(path):
        return "operations:read" if method in ("GET", "HEAD") else "operations"
    if path.startswith(_UPSTREAM):
        return "upstream"
    if not path.startswith(_ROOMS):
        return "models"
    return "rooms:read" if method in ("GET", "HEAD") else "rooms"


POLL_SECONDS = 1.0
"""How long a revoked key may still work; a new one works at once."""


class Key(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The stored part of a key, which doesn't reveal the key."""

    id: str
    digest: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    """Hexadecimal SHA-256 of the key. A key has 256 random bits, so a slower digest would not make it safer."""
    tenant: str
    user: str
    scopes: tuple[str, ...]
    created_at: str
    limits: Limits | None = None

    @property
    def principal(self) -> Principal:
        return Principal(self.tenant, self.user, frozenset(self.scopes), self.id, self.limits)


class KeyFile:
    """The keys in `state_dir/keys.json`, which only its owner can read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[Key, ...]:
        """Raises ProviderUnavailable if the file is unreadable: without the keys, nobody gets in."""
        try:
            entries = json.loads(self.path.read_bytes())["keys"]
            return msgspec.convert(entries, tuple[Key, ...])
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, TypeError, KeyError, msgspec.ValidationError) as error:
            why = f"{self.path.name} of the state folder can't be read ({type(error).__name__}): repair or remove it"
            raise ProviderUnavailable(why, code="keys_unreadable") from error

    def stamp(self) -> tuple[int, int, int] | None:
        """Changes whenever the file does; None without a file that can be seen."""
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def add(
        self,
        *,
        tenant: str = "local",
        user: str = "local",
        scopes: Sequence[str] = ("*",),
        limits: Limits | None = None,
    ) -> tuple[Key, str]:
        """Returns the entry and the key, which is shown this once.

        limits: not allowed with the scope rooms: there, models also work for other callers.

        Raises ProviderInvalidRequest, and ProviderUnavailable if the file can't be written.
        """
        for kind, name in (("tenant", tenant), ("user", user)):
            if not name.isprintable() or not 1 <= len(name) <= 128 or " " in name:
                raise ProviderInvalidRequest(f"{kind} {name!r}: use 1 to 128 printable characters without spaces")
        for scope in scopes:
            if scope not in SCOPES:
                raise ProviderInvalidRequest(f"{scope!r} is not a scope; there are: {', '.join(SCOPES)}")
        if not scopes:
            raise ProviderInvalidRequest(f"a key needs a scope; there are: {', '.join(SCOPES)}")
        if limits is not None and {"*", "rooms"} & set(scopes):
            raise ProviderInvalidRequest("a key with limits can't have the scope * or rooms: give it --scope models")
        import secrets

        written = PREFIX + secrets.token_urlsafe(32)
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        key = Key(
            id=secrets.token_hex(4),
            digest=hashlib.sha256(written.encode()).hexdigest(),
            tenant=tenant,
            user=user,
            scopes=tuple(scopes),
            created_at=now,
            limits=limits,
        )
        self.change(lambda keys: (*keys, key))
        return key, written

    def revoke(self, id: str) -> Key:
        """Raises ProviderInvalidRequest for an unknown key, ProviderUnavailable if the file can't be written."""
        gone: list[Key] = []

        def without(keys: tuple[Key, ...]) -> tuple[Key, ...]:
            gone[:] = [key for key in keys if key.id == id]
            if not gone:
                known = ", ".join(key.id for key in keys) or "none"
                raise ProviderInvalidRequest(f"there is no key {id!r}; there are: {known}", code="key_not_found")
            return tuple(key for key in keys if key.id != id)

        self.change(without)
        return gone[0]

    def change(self, work: Callable[[tuple[Key, ...]], tuple[Key, ...]]) -> None:
        """Replaces the keys by the result of `work`. Raises what it raises, and ProviderUnavailable."""
        with self._locked():
            self._write(work(self.read()))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Serialises commands: a second one waits, then sees the first one's changes.

        Raises ProviderUnavailable if the file can't be written, and then it has changed nothing.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(self.path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
            finally:
                os.close(lock)
        except OSError as error:
            message = f"{self.path} can't be written, no key has changed: {error.strerror or error}"
            raise ProviderUnavailable(message, code="keys_unwritable") from error

    def _write(self, keys: Sequence[Key]) -> None:
        new = self.path.with_suffix(".new")
        new.unlink(missing_ok=True)  # left by a killed command
        with open(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
            json.dump({"keys": msgspec.to_builtins(keys)}, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.path)


class Keyring:
    """Maps keys to callers, and decides whether a key is needed. A server that once needed keys always does.

    While the file can't be read, `anybody` and `principal` raise ProviderUnavailable.
    fixed: keys of `principal`, who is also the caller while no key is needed.
    always: a key is needed even if there is none yet.
    """

    def __init__(
        self,
        fixed: Sequence[str],
        principal: Principal,
        file: KeyFile,
        *,
        always: bool,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._fixed = [(hashlib.sha256(key.encode()).digest(), principal) for key in fixed]
        self._nobody = principal
        self._file = file
        self._now = now
        self._polled = now()
        self._stamp = file.stamp()
        self._known = self._fixed
        self.needed = always or bool(fixed)
        """A key is needed."""
        self._last: tuple[bytes, Principal] | None = None
        """The key that was found last, with its caller: a comparison costs far less than a digest."""
        with suppress(ProviderUnavailable):
            self._read()

    def anybody(self) -> Principal | None:
        """The caller, if no key is needed."""
        if self._unread or self._now() - self._polled >= POLL_SECONDS:
            self._poll()
        return None if self.needed else self._nobody

    def principal(self, key: bytes | None) -> Principal:
        """The caller with this key; None: no key was sent. Raises ProviderAuthentication."""
        if self._unread or self._now() - self._polled >= POLL_SECONDS:
            self._poll()  # as in `anybody`: a call costs more than the rest of that
        if self._nobody is not None and not self.needed:
            return self._nobody
        if key is not None:
            if self._last is not None and hmac.compare_digest(key, self._last[0]):
                return self._last[1]
            digest = hashlib.sha256(key).digest()
            found = self._find(digest)
            if found is None and self._poll():  # the key may be newer than the last read of the file
                found = self._find(digest)
            if found is not None:
                self._last = key, found
                return found
        raise ProviderAuthentication(KEY_NEEDED)

    def _find(self, digest: bytes) -> Principal | None:
        """Compares every key in full, so that the time taken reveals nothing."""
        matches = [principal for known, principal in self._known if hmac.compare_digest(digest, known)]
        return matches[0] if matches else None

    def _poll(self) -> bool:
        """Reads the file if it has changed; returns whether it had."""
        self._polled = self._now()
        stamp = self._file.stamp()
        if stamp == self._stamp and not self._unread:
            return False
        self._stamp = stamp
        self._read()
        return True

    def _read(self) -> None:
        self._unread = True  # if this raises, the next request tries again
        self._known = self._fixed + [(bytes.fromhex(key.digest), key.principal) for key in self._file.read()]
        self._unread = False
        self._last = None
        self.needed = self.needed or bool(self._known)

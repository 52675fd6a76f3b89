"""Writes files that appear complete and verified, or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from gateway.errors import ProviderInvalidResponse, ProviderUnavailable
from gateway.pull.progress import Progress, size

CHUNK = 1024 * 1024


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def verified(path: Path, sha256: str) -> bool:
    return path.is_file() and digest(path) == sha256


def check_space(count: int, folder: Path) -> None:
    """Raises ProviderUnavailable if `folder` has no space for `count` more bytes."""
    free = shutil.disk_usage(folder).free
    if count > free:
        raise ProviderUnavailable(f"{folder} has {size(free)} left, but needs {size(count)}", code="disk_full")


def install(chunks: Iterable[bytes], place: Path, sha256: str | None, total: int, progress: Progress) -> None:
    """Writes `chunks` beside `place`, verifies them, and moves them there atomically.

    Raises ProviderInvalidResponse for a wrong hash, and leaves nothing behind.
    """
    draft = beside(place, "writing")
    hasher = hashlib.sha256()
    done = 0
    try:
        with draft.open("wb") as stream:
            for chunk in chunks:
                stream.write(chunk)
                hasher.update(chunk)
                done += len(chunk)
                progress(f"unpacking {place.name}", done, total)
            stream.flush()
            os.fsync(stream.fileno())
        if sha256 is not None and hasher.hexdigest() != sha256:
            raise wrong_hash(place.name, sha256, hasher.hexdigest())
        os.replace(draft, place)
    finally:
        draft.unlink(missing_ok=True)


def wrong_hash(name: str, wanted: str, found: str) -> ProviderInvalidResponse:
    return ProviderInvalidResponse(
        f"{name} isn't what was promised: its SHA-256 is {found}, not {wanted}; nothing was kept", code="wrong_hash"
    )


def beside(place: Path, what: str) -> Path:
    """A hidden file in the same folder, so that a move to `place` is atomic."""
    return place.with_name(f".{place.name}.{what}")

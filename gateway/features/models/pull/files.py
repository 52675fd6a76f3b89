"""Writes files that appear complete and verified, or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.errors import ProviderInvalidResponse, ProviderUnavailable
from gateway.features.models.pull.progress import Progress, size

CHUNK = 1024 * 1024
FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
"""The disk, the user's share of it, or the size that a file may have."""


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


@contextmanager
def cleared_if_full(*drafts: Path) -> Iterator[None]:
    """Removes the drafts, files or folders, if the disk is full. Raises ProviderUnavailable then."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        _remove(drafts)
        where = drafts[0].parent
        raise ProviderUnavailable(
            f"{where} has no more space ({error.strerror}); nothing was kept", code="disk_full"
        ) from error
    except ProviderUnavailable as error:
        if error.code == "disk_full":
            _remove(drafts)
        raise


def _remove(drafts: Iterable[Path]) -> None:
    for draft in drafts:
        if draft.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            draft.unlink(missing_ok=True)


def install(chunks: Iterable[bytes], place: Path, sha256: str | None, total: int, progress: Progress) -> None:
    """Writes `chunks` beside `place`, verifies them, and moves them there atomically.

    Raises ProviderInvalidResponse for a wrong hash, and leaves nothing behind.
    """
    draft = beside(place, "writing")
    hasher = hashlib.sha256()
    done = 0
    try:
        with cleared_if_full(draft), draft.open("wb") as stream:
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


def unfinished(place: Path) -> list[Path]:
    """What a pull to `place` has left beside it when it was interrupted."""
    ours = re.compile(re.escape(beside(place, "").name) + r"(?:writing|old|[0-9a-f]{12}\.(?:part|hub))")
    return [path for path in place.parent.iterdir() if ours.fullmatch(path.name)] if place.parent.is_dir() else []

"""The file jail: an fsspec filesystem that can't be left.

It walks every path from the root's descriptor, one name at a time, without following links (openat, O_NOFOLLOW). So it
also refuses links that another process puts in place meanwhile. `/` is the root.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from fsspec import AbstractFileSystem

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
LOCK_SECONDS = 5
LONGEST_PATH, LONGEST_NAME = 4096, 255
DEEPEST = 128
"""The most levels of folders to walk."""
MAX_ENTRIES = 100_000
"""The most entries to read from a folder."""

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """The quota."""

    bytes: int
    count: int
    """Files and folders."""
    depth: int


def names(path: str) -> Names:
    """Splits a path into names. A leading `/` is the root.

    Raises OSError: EPERM for `..`, EINVAL or ENAMETOOLONG for an invalid path.
    """
    if len(path) > LONGEST_PATH:
        raise _error(errno.ENAMETOOLONG, "the path is too long")
    found = tuple(name for name in path.split("/") if name not in ("", "."))
    if ".." in found:
        raise _error(errno.EPERM, "a path can't contain ..")
    for name in found:
        try:
            length = len(name.encode())
        except UnicodeEncodeError:
            raise _error(errno.EINVAL, "the path isn't valid Unicode") from None
        if "\0" in name:
            raise _error(errno.EINVAL, "a path can't contain NUL")
        if length > LONGEST_NAME:
            raise _error(errno.ENAMETOOLONG, "a name in the path is too long")
    return found


class JailedFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Files below `root`; creates the root if it is missing. Calls block and raise OSError.

    EPERM: a symbolic or hard link, `..`, another file system, or not a regular file (a pipe, a device).
    EDQUOT: over the limits. Changes take a lock, between processes too; EBUSY if that takes too long.
    """

    protocol = "jail"
    cachable = False

    def __init__(self, root: Path, limits: Limits | None) -> None:
        """limits: None for a folder that isn't ours, which has no quota and must exist."""
        super().__init__(use_listings_cache=False, skip_instance_cache=True)
        if limits is not None:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._root = root
        self._limits = limits

    @classmethod
    def _strip_protocol(cls, path: str | os.PathLike[str]) -> str:
        return "/".join(names(os.fspath(path)))

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Returns `{name, type, size, mtime, mode}`. type: file, directory, link or other."""
        wanted = names(path)
        with self._folder(wanted[:-1]) as (folder, _):
            status = os.stat(wanted[-1], dir_fd=folder, follow_symlinks=False) if wanted else os.fstat(folder)
        return _info(wanted, status)

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        wanted = names(path)
        with self._folder(wanted) as (folder, _), os.scandir(folder) as entries:
            found = []
            for entry in islice(entries, MAX_ENTRIES):
                try:
                    found.append(_info((*wanted, entry.name), entry.stat(follow_symlinks=False)))
                except FileNotFoundError:
                    continue  # deleted meanwhile
        found.sort(key=lambda info: info["name"])
        return found if detail else [info["name"] for info in found]

    def below(self, path: str, depth: int = DEEPEST) -> Iterator[dict[str, Any]]:
        """Yields everything below a folder, down to `depth` levels, sorted by name, each folder before its entries.

        Skips folders that vanish meanwhile or can't be read.
        """
        top = names(path)
        waiting = self.ls(path)[::-1]
        while waiting:
            found = waiting.pop()
            yield found
            if found["type"] != "directory" or found["name"].count("/") + 1 - len(top) >= min(depth, DEEPEST):
                continue
            try:
                waiting += self.ls(found["name"])[::-1]
            except OSError:
                continue

    def _open(self, path: str, mode: str = "rb", *args: Any, **kwargs: Any) -> BinaryIO:
        if mode != "rb":
            raise _error(errno.EINVAL, "files can only be written as a whole, with pipe_file")
        wanted = self._named(path)
        with self._folder(wanted[:-1]) as (folder, device):
            # Checked before opening: opening a device may have effects.
            _check_file(os.stat(wanted[-1], dir_fd=folder, follow_symlinks=False), device)
            file = os.open(wanted[-1], FILE, dir_fd=folder)
        try:
            _check_file(os.fstat(file), device)
        except OSError:
            os.close(file)
            raise
        return os.fdopen(file, "rb")

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        """Replaces a file atomically. With mode `create` it must not exist."""
        wanted = self._named(path)
        with self._changes(), self._folder(wanted[:-1]) as (folder, device):
            before, kept = 0, 0o600
            try:
                status = os.stat(wanted[-1], dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                self._check_quota(wanted, 1, len(value))
            else:
                if mode == "create":
                    raise _error(errno.EEXIST, "it already exists")
                _check_file(status, device)
                before, kept = status.st_size, stat.S_IMODE(status.st_mode)
                self._check_quota(wanted, 0, len(value) - before)
            part = f".{secrets.token_hex(8)}.part"
            file = os.open(
                part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder
            )
            try:
                with os.fdopen(file, "wb") as stream:
                    os.fchmod(file, kept)
                    stream.write(value)
                os.rename(part, wanted[-1], src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                os.unlink(part, dir_fd=folder)
                raise

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        wanted = self._named(path)
        with self._changes():
            known = self._deepest(wanted)
            if known == len(wanted):
                raise _error(errno.EEXIST, "it already exists")
            if known < len(wanted) - 1 and not create_parents:
                raise _error(errno.ENOENT, "its parent folder doesn't exist")
            self._check_quota(wanted, len(wanted) - known, 0)
            for length in range(known, len(wanted)):
                with self._folder(wanted[:length]) as (folder, _):
                    os.mkdir(wanted[length], 0o700, dir_fd=folder)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        try:
            self.mkdir(path)
        except FileExistsError:
            if not exist_ok or self.info(path)["type"] != "directory":
                raise

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Removes a file, link or folder; a link's target stays. Without `recursive` a folder must be empty."""
        wanted = self._named(path)
        with self._changes(), self._folder(wanted[:-1]) as (folder, device):
            _remove(folder, wanted[-1], device, recursive, 0)

    def rm_file(self, path: str) -> None:
        self._rm(path)

    def _rm(self, path: str) -> None:
        self.rm(path)

    def rmdir(self, path: str) -> None:
        self.rm(path)

    def mv(self, path1: str, path2: str, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        """Renames. `path2` must not exist, its parent must."""
        source, target = self._named(path1), self._named(path2)
        if target[: len(source)] == source and target != source:
            raise _error(errno.EINVAL, "a folder can't be moved into itself")
        with (
            self._changes(),
            self._folder(source[:-1]) as (from_folder, _),
            self._folder(target[:-1]) as (to_folder, _),
        ):
            status = os.stat(source[-1], dir_fd=from_folder, follow_symlinks=False)
            if _exists(to_folder, target[-1]):
                raise _error(errno.EEXIST, "the destination already exists")
            deepest = 0
            if stat.S_ISDIR(status.st_mode):
                deepest = max((len(names(info["name"])) - len(source) for info in self.below(path1)), default=0)
            self._check_depth(len(target) + deepest)
            os.rename(source[-1], target[-1], src_dir_fd=from_folder, dst_dir_fd=to_folder)

    def usage(self) -> tuple[int, int]:
        """The number of files and folders, and their bytes. Stops counting at the limits."""
        count = total = 0
        for info in self.below(""):
            count += 1
            total += info["size"] if info["type"] == "file" else 0
            if self._limits is not None and count > self._limits.count:
                break
        return count, total

    def _named(self, path: str) -> Names:
        found = names(path)
        if not found:
            raise _error(errno.EPERM, "the root can't be changed")
        return found

    @contextmanager
    def _folder(self, wanted: Names) -> Iterator[tuple[int, int]]:
        """Opens a folder: its descriptor, and the device of the whole tree."""
        if len(wanted) > DEEPEST:
            raise _error(errno.ENAMETOOLONG, "the path is too deep")
        folder = os.open(self._root, FOLDER)
        try:
            device = os.fstat(folder).st_dev
            for name in wanted:
                try:
                    below = os.open(name, FOLDER, dir_fd=folder)
                except OSError as error:
                    if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(folder, name):
                        raise _error(errno.EPERM, "links are not followed") from None
                    raise
                os.close(folder)
                folder = below
                if os.fstat(folder).st_dev != device:
                    raise _error(errno.EPERM, "it is on another file system")
            yield folder, device
        finally:
            os.close(folder)

    @contextmanager
    def _changes(self) -> Iterator[None]:
        """Locks the tree, so that the quota still holds when a checked change is made."""
        root = os.open(self._root, FOLDER)
        try:
            deadline = time.monotonic() + LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(root, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise _error(errno.EBUSY, "another change takes too long") from None
                    time.sleep(0.005)
            yield
        finally:
            os.close(root)

    def _deepest(self, wanted: Names) -> int:
        """How many leading names of the path exist. All but the last must be folders."""
        for length in range(len(wanted)):
            with self._folder(wanted[:length]) as (folder, _):
                if not _exists(folder, wanted[length]):
                    return length
        return len(wanted)

    def _check_depth(self, depth: int) -> None:
        if self._limits is not None and depth > self._limits.depth:
            raise _error(errno.EDQUOT, f"paths may have at most {self._limits.depth} names")

    def _check_quota(self, wanted: Names, count: int, size: int) -> None:
        """Checks whether this many new entries and bytes fit."""
        if self._limits is None:
            return
        self._check_depth(len(wanted))
        there, total = self.usage()
        if count > 0 and there + count > self._limits.count:
            raise _error(errno.EDQUOT, f"at most {self._limits.count} files and folders are allowed")
        if size > 0 and total + size > self._limits.bytes:
            raise _error(errno.EDQUOT, f"the files may have at most {self._limits.bytes} bytes together")


def _remove(folder: int, name: str, device: int, recursive: bool, depth: int) -> None:
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=folder)
        return
    if recursive:
        if depth >= DEEPEST:
            raise _error(errno.ENAMETOOLONG, "the folders are too deep")
        below = os.open(name, FOLDER, dir_fd=folder)
        try:
            if os.fstat(below).st_dev != device:
                raise _error(errno.EPERM, "it is on another file system")
            for inner in os.listdir(below):
                _remove(below, inner, device, recursive, depth + 1)
        finally:
            os.close(below)
    os.rmdir(name, dir_fd=folder)


def _check_file(status: os.stat_result, device: int) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise _error(errno.EISDIR, "it is a folder")
    if stat.S_ISLNK(status.st_mode):
        raise _error(errno.EPERM, "links are not followed")
    if not stat.S_ISREG(status.st_mode) or status.st_dev != device:
        raise _error(errno.EPERM, "it isn't a regular file of this tree")
    if status.st_nlink != 1:
        # Another name may lie outside the root.
        raise _error(errno.EPERM, "files with hard links are not opened")


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _is_link(folder: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _info(path: Names, status: os.stat_result) -> dict[str, Any]:
    mode = status.st_mode
    kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "link"))
    kind = next((name for is_kind, name in kinds if is_kind(mode)), "other")
    # A name that isn't UTF-8 can only be shown.
    shown = "/".join(os.fsencode(name).decode("utf-8", "replace") for name in path)
    size = status.st_size if kind == "file" else 0
    return {"name": shown, "type": kind, "size": size, "mtime": status.st_mtime, "mode": stat.filemode(mode)}


def _error(number: int, message: str) -> OSError:
    return OSError(number, message)

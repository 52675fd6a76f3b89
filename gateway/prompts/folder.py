"""The files of saved prompts. All methods block; call them in a thread.

Each prompt has two files: NAME.prompt, which the engine wrote, and NAME.json, which describes it. The description is
written last and removed first, so a prompt without a description is a leftover. The files contain conversations: only
the owner can open the folder.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable, Iterator
from hashlib import file_digest
from pathlib import Path
from secrets import token_hex

import msgspec
from msgspec.structs import replace

from gateway.prompts.index import Saved
from gateway.prompts.key import FileVersion, version_of

log = logging.getLogger("ctxgate")

PROMPT, DESCRIPTION = ".prompt", ".json"
ABANDONED_SECONDS = 600.0
HEAD_BYTES = 4 * 1024 * 1024
"""Enough for the ids of a million tokens."""
_FRESH = re.compile(r"(?:new|aside)-(\d+)-[0-9a-f]+\.(prompt|safetensors)")


class Damaged(Exception):
    """A file doesn't match its description."""


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._checked: dict[str, FileVersion] = {}
        """The versions of files whose hashes have been verified, by name."""

    def list(self) -> dict[str, Saved]:
        """The saved prompts by name."""
        found = (self._described(description) for description in self._glob(f"*{DESCRIPTION}"))
        return {saved.name: saved for saved in found if saved is not None}

    def open(self) -> dict[str, Saved]:
        """The saved prompts by name. Removes files that killed gateways left incomplete. Raises OSError."""
        self.make()
        found = self.list()
        for description in self._glob(f"*{DESCRIPTION}"):
            if description.stem not in found:
                self._unlink(description.stem)
        for prompt in (*self._glob(f"*{PROMPT}"), *self._glob("new-*.safetensors")):
            writer = _FRESH.fullmatch(prompt.name)
            if writer is not None:
                # This process has written nothing yet: a file with its id belongs to an earlier one that died.
                if int(writer[1]) == os.getpid() or not _alive(int(writer[1])):
                    prompt.unlink(missing_ok=True)
            elif prompt.stem not in found and not prompt.with_suffix(DESCRIPTION).exists():
                prompt.unlink(missing_ok=True)
        for half in self._glob(f"*{DESCRIPTION}.new"):
            half.unlink(missing_ok=True)
        return found

    def make(self) -> None:
        """Creates the folder, accessible only to its owner. Raises OSError."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.chmod(0o700)

    def fresh(self, kind: str = "new") -> str:
        """The name of a file that an engine may write. kind: `aside` for one that is needed as long as this process
        lives."""
        return f"{kind}-{os.getpid()}-{token_hex(8)}{PROMPT}"

    def read(self, fresh: str, size: int) -> tuple[FileVersion, bytes]:
        """The version of a file that an engine wrote as `fresh`, for `unchanged`, and its first HEAD_BYTES. Raises
        Damaged if the size isn't `size`, OSError."""
        path = self.path / fresh
        with path.open("rb") as file:
            os.fchmod(file.fileno(), 0o600)
            if os.fstat(file.fileno()).st_size != size:
                raise Damaged(f"the engine wrote {os.fstat(file.fileno()).st_size} of {size} bytes")
            head = file.read(HEAD_BYTES)
        return version_of(path), head

    def unchanged(self, fresh: str, version: FileVersion) -> bool:
        """Whether nobody has touched the file since `read`. Raises OSError."""
        return version_of(self.path / fresh) == version

    def keep(self, fresh: str, saved: Saved) -> Saved:
        """Takes over a file from an engine (see `fresh`) or from another machine; returns its description with hash.

        Raises Damaged if the size isn't `saved.size`, or the hash another than `saved.sha256` unless that is empty;
        OSError. Removes the file then.
        """
        path = self.path / fresh
        try:
            with path.open("rb") as file:
                os.fchmod(file.fileno(), 0o600)
                if os.fstat(file.fileno()).st_size != saved.size:
                    raise Damaged(f"the engine wrote {os.fstat(file.fileno()).st_size} of {saved.size} bytes")
                os.fsync(file.fileno())
                digest = file_digest(file, "sha256").hexdigest()
                if saved.sha256 not in ("", digest):
                    raise Damaged("its contents aren't those that were saved")
                saved = replace(saved, sha256=digest)
            kept = path.replace(self.path / (saved.name + PROMPT))
            self._checked[saved.name] = version_of(kept)
            self._describe(saved)
            self._sweep()
        except BaseException:
            path.unlink(missing_ok=True)
            self._unlink(saved.name)
            raise
        return saved

    def file(self, saved: Saved) -> str:
        """The name of the file for the engine to read, after a check of its size and hash.

        Doesn't read a file again that nobody has touched since the last check. Raises Damaged, OSError.
        """
        path = self.check(saved)
        os.utime(path)
        self._checked[saved.name] = version_of(path)
        return path.name

    def check(self, saved: Saved) -> Path:
        """Like `file`, but doesn't count as a use. Returns the path."""
        path = self.path / (saved.name + PROMPT)
        version = version_of(path)
        if self._checked.get(saved.name) == version:
            return path
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != saved.size:
                raise Damaged("its size has changed")
            if file_digest(file, "sha256").hexdigest() != saved.sha256:
                raise Damaged("its contents have changed")
        # The version from before the check, so that a change during the check is noticed next time.
        self._checked[saved.name] = version
        return path

    def remove(self, name: str) -> None:
        """Removes a saved prompt, or a file that an engine wrote. Raises nothing if it is gone."""
        self._unlink(name.removesuffix(PROMPT))

    def remove_all(self, names: Iterable[str]) -> None:
        """Like `remove`; logs failures instead of raising them."""
        for name in names:
            try:
                self.remove(name)
            except OSError as error:
                log.warning("can't remove the saved prompt %s: %s", name, error)

    def free(self) -> int:
        """Free bytes of the file system. Raises OSError."""
        stat = os.statvfs(self.path)
        return stat.f_bavail * stat.f_frsize

    def _describe(self, saved: Saved) -> None:
        path = self.path / (saved.name + DESCRIPTION)
        fresh = path.with_suffix(f"{DESCRIPTION}.new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(msgspec.json.encode(saved))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _described(self, description: Path) -> Saved | None:
        """None if the description doesn't match its file."""
        prompt = description.with_suffix(PROMPT)
        try:
            saved = msgspec.json.decode(description.read_bytes(), type=Saved)
            stat = prompt.stat()
        except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
            return None
        if saved.name != description.stem or stat.st_size != saved.size:
            return None
        return replace(saved, used=max(saved.saved, stat.st_mtime))

    def _unlink(self, name: str) -> None:
        self._checked.pop(name, None)
        (self.path / (name + DESCRIPTION)).unlink(missing_ok=True)
        (self.path / (name + PROMPT)).unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Removes files that engines finished long after the gateway stopped waiting for them."""
        for fresh in self._glob("new-*"):
            try:
                if time.time() - fresh.stat().st_mtime > ABANDONED_SECONDS:
                    fresh.unlink()
            except FileNotFoundError:
                continue

    def _glob(self, pattern: str) -> Iterator[Path]:
        return iter(sorted(self.path.glob(pattern)))


def name() -> str:
    """A new name; names sort by time, for people who look at the folder."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{token_hex(4)}"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

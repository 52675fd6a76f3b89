"""Saved prompts in storage that several machines reach: a folder, or any URL of fsspec.

KEY/NAME.prompt and KEY/NAME.json, as in `gateway.prompts.folder`. Names are never reused and the description is written
last, so a reader sees a prompt completely or not at all. All methods but `run` block.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from gateway.prompts.folder import DESCRIPTION, PROMPT
from gateway.prompts.index import DAY, Saved

THREADS = 2
"""Threads of its own, so that a share that hangs doesn't block those for other work."""
MAX_DESCRIPTION = 4 * 1024 * 1024
"""Bytes. The description of a prompt of a million tokens has 0.3 MB."""
ABANDONED_SECONDS = DAY
"""A prompt without a description is an upload that never ended."""
_FILE = re.compile(r"([0-9a-f]{32})/(\d{8}-\d{6}-[0-9a-f]{8})(\.prompt|\.json)")

Value = TypeVar("Value")


class _File(NamedTuple):
    size: int
    modified: float


class Share:
    def __init__(self, url: str) -> None:
        self._url = url
        self._place: tuple[Any, str] | None = None
        self._known: dict[str, Saved] = {}
        """Descriptions that were read, by path."""
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="shared prompts")

    async def run(self, call: Callable[..., Value], *args: Any) -> Value:
        """Runs a method in a thread. Raises whatever the file system of the URL does."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)

    def list(self, key: str) -> dict[str, Saved]:
        """The prompts of one key by name. Leaves out incomplete and foreign files."""
        files = self._files(key)
        described = {path: file for path, file in files.items() if path.endswith(DESCRIPTION)}
        new = [path for path, file in described.items() if path not in self._known and file.size <= MAX_DESCRIPTION]
        fs, root = self._fs()
        if new:
            found = fs.cat([f"{root}/{path}" for path in new], on_error="omit")
            self._known |= {
                path: saved for path in new if (saved := _described(path, found.get(f"{root}/{path}"))) is not None
            }
        # Other threads list other keys meanwhile.
        for path in [*self._known]:
            if path.startswith(f"{key}/") and path not in described:
                self._known.pop(path, None)
        return {
            saved.name: saved
            for path, saved in self._known.copy().items()
            if path in described and (file := files.get(f"{key}/{saved.name}{PROMPT}")) and file.size == saved.size
        }

    def put(self, saved: Saved, file: Path) -> None:
        """Copies a prompt there; `saved.key` is the share's."""
        fs, root = self._fs()
        folder = f"{root}/{saved.key}"
        fs.makedirs(folder, exist_ok=True)
        if _local(fs):
            Path(folder).chmod(0o700)  # as at home
        fs.put_file(str(file), f"{folder}/{saved.name}{PROMPT}")
        fs.pipe_file(f"{folder}/{saved.name}{DESCRIPTION}", msgspec.json.encode(saved))

    def get(self, saved: Saved, to: Path) -> None:
        """Copies a prompt to a new file, without checking it."""
        fs, root = self._fs()
        to.touch(0o600, exist_ok=False)
        fs.get_file(f"{root}/{saved.key}/{saved.name}{PROMPT}", str(to))

    def remove(self, key: str, names: Iterable[str]) -> None:
        self._remove(f"{key}/{name}{suffix}" for name in names for suffix in (DESCRIPTION, PROMPT))

    def tidy(self, max_bytes: int, max_age_days: float) -> None:
        """Removes prompts that are too old, the oldest above `max_bytes`, and incomplete uploads."""
        now = time.time()
        files = self._files()
        prompts = sorted((file.modified, path) for path, file in files.items() if path.endswith(PROMPT))
        whole = [each for each in prompts if each[1].removesuffix(PROMPT) + DESCRIPTION in files]
        gone = {path for at, path in prompts if now - at > ABANDONED_SECONDS} - {path for _, path in whole}
        size = sum(files[path].size for _, path in whole)
        for at, path in whole:
            if size <= max_bytes and now - at <= max_age_days * DAY:
                break
            gone.add(path)
            size -= files[path].size
        # Remove the description first: a prompt without one is a leftover.
        self._remove(path.removesuffix(PROMPT) + suffix for path in sorted(gone) for suffix in (DESCRIPTION, PROMPT))

    def _remove(self, paths: Iterable[str]) -> None:
        fs, root = self._fs()
        for path in paths:
            try:
                fs.rm_file(f"{root}/{path}")
            except FileNotFoundError:
                continue  # another machine was faster

    def _files(self, key: str | None = None) -> dict[str, _File]:
        """Our files by path, KEY/NAME.prompt or KEY/NAME.json; of one key, or all."""
        fs, root = self._fs()
        fs.invalidate_cache()
        try:
            found = fs.find(f"{root}/{key}" if key is not None else root, maxdepth=None, detail=True)
        except FileNotFoundError:
            return {}
        files: dict[str, _File] = {}
        for path, info in found.items():
            name = path.removeprefix(f"{root}/")
            if _FILE.fullmatch(name) and info["type"] == "file":
                files[name] = _File(int(info["size"] or 0), _modified(info))
        return files

    def _fs(self) -> tuple[Any, str]:
        """fsspec's file system, and the share's path in it."""
        if self._place is None:
            from fsspec.core import url_to_fs  # the gateway's start needn't wait for it

            fs, root = url_to_fs(self._url)
            self._place = fs, root.rstrip("/")
        return self._place


def _described(path: str, data: bytes | None) -> Saved | None:
    """None for a description that is incomplete or contradicts its path."""
    try:
        saved = msgspec.json.decode(data or b"", type=Saved)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None
    if path != f"{saved.key}/{saved.name}{DESCRIPTION}" or saved.size <= 0 or saved.tokens <= 0 or not saved.sha256:
        return None
    return saved


def _local(fs: Any) -> bool:
    return "file" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol)


def _modified(info: dict[str, Any]) -> float:
    """Seconds since 1970; each file system has its own name for it. Now, if it doesn't say."""
    names = ("mtime", "LastModified", "last_modified", "updated", "created")
    found = next((info[name] for name in names if name in info), None)
    if isinstance(found, datetime):
        return found.timestamp()
    return float(found) if isinstance(found, int | float) else time.time()

"""The saved prompts of all engines of a gateway: the files, their bounds, and what became of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from pathlib import Path

from gateway.config import Prompts
from gateway.prompts.blocks import Chain
from gateway.prompts.folder import Damaged, Folder
from gateway.prompts.index import Match, Saved, best, excess, superseded
from gateway.prompts.key import FileVersion

log = logging.getLogger("ctxgate")

SPARE_BYTES = 256 * 1024 * 1024
"""What a file system keeps free when prompts are saved."""
PAUSE_SECONDS = 60.0
"""After a failure to save, such as a full disk."""
UNSUPPORTED = "unsupported"
"""The file with the keys of engines that restore without effect, one in a line."""


class SavedPrompts:
    """path: their folder; made on first use. saves, restores, failures: counts since the start."""

    def __init__(self, settings: Prompts, path: Path) -> None:
        self.settings = settings
        self.saves = self.restores = self.failures = 0
        self._folder = Folder(path)
        self._entries: dict[str, Saved] = {}
        self._opened = asyncio.Lock()
        self._is_open = False
        self._unsupported: set[str] = set()
        self._paused_until = 0.0
        self._told: set[str] = set()
        self._bytes_per_token: dict[str, float] = {}
        self._keeping: dict[asyncio.Task[None], str] = {}
        """What `keep_later` began, with the keys."""

    @property
    def path(self) -> Path:
        return self._folder.path

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    async def ready(self) -> Path | None:
        """The folder, made for engines that start, which refuse one that isn't there; None if nothing is saved."""
        if self.settings.save == "off":
            return None
        try:
            await asyncio.to_thread(self._folder.make)
        except OSError as error:
            self.failed(error)
            return None
        return self.path

    async def open(self) -> None:
        """Reads the folder, once. Raises OSError."""
        async with self._opened:
            if self._is_open:
                return
            self._entries = await asyncio.to_thread(self._folder.open)
            self._unsupported = await asyncio.to_thread(self._read_unsupported)
            self._is_open = True
            await self.tidy()

    def best(self, key: str, chain: Chain) -> Match | None:
        return best(self._entries.values(), key, chain)

    # Saving

    def refuses(self, key: str, tokens: int) -> bool:
        """Whether a prompt of that many tokens is not to be saved now. Tells the reason, once."""
        settings = self.settings
        if tokens < settings.min_tokens:
            return True
        return self.short(key, tokens)

    def short(self, key: str, tokens: int) -> bool:
        """As `refuses`, for prompts of any length."""
        settings = self.settings
        if settings.save == "off" or key in self._unsupported or time.monotonic() < self._paused_until:
            return True
        size = tokens * self._bytes_per_token.get(key, 0.0)
        if size > settings.max_bytes:
            self._tell(f"prompts of {int(size)} bytes aren't saved: prompts.max_bytes is {settings.max_bytes}")
            return True
        try:
            short = self._folder.free() < size + SPARE_BYTES
        except OSError as error:
            self.failed(error)
            return True
        if short:
            self.failed(OSError(f"{self.path} has less than {SPARE_BYTES} bytes left"))
        return short

    def fresh(self, kind: str = "new") -> str:
        """The name of a file for an engine to write; see `Folder.fresh`."""
        return self._folder.fresh(kind)

    async def read(self, fresh: str, size: int) -> tuple[FileVersion, bytes]:
        """See `Folder.read`. Raises Damaged, OSError."""
        return await asyncio.to_thread(self._folder.read, fresh, size)

    async def unchanged(self, fresh: str, version: FileVersion) -> bool:
        """See `Folder.unchanged`. Raises OSError."""
        return await asyncio.to_thread(self._folder.unchanged, fresh, version)

    async def keep(self, fresh: str, saved: Saved) -> None:
        """Takes over a file that an engine wrote, and keeps to the bounds. Raises OSError, Damaged."""
        saved = await asyncio.to_thread(self._folder.keep, fresh, saved)
        self._bytes_per_token[saved.key] = saved.size / saved.tokens
        self.saves += 1
        await self._remove(superseded(self._entries.values(), saved))
        self._entries[saved.name] = saved
        await self.tidy()

    def keep_later(self, fresh: str, saved: Saved) -> None:
        """As `keep`, while the caller goes on; `kept` waits for it. A failure is told, not raised."""
        task = asyncio.create_task(self._keep_or_discard(fresh, saved), name=f"keep a prompt of {saved.model}")
        self._keeping[task] = saved.key
        task.add_done_callback(self._keeping.pop)

    async def kept(self, key: str | None = None) -> None:
        """Returns once `keep_later` has kept all files, or those of one key. Raises nothing."""
        while waiting := [task for task, its in self._keeping.items() if key is None or its == key]:
            await asyncio.wait(waiting)

    async def _keep_or_discard(self, fresh: str, saved: Saved) -> None:
        try:
            await self.keep(fresh, saved)
        except (Damaged, OSError) as error:
            self.failed(error)
            await self.discard(fresh)

    async def discard(self, fresh: str) -> None:
        """Removes a file that an engine wrote in vain."""
        await asyncio.to_thread(self._folder.remove, fresh)

    def failed(self, error: Exception) -> None:
        """Nothing is saved for a while; tells so the first time."""
        self.failures += 1
        self._paused_until = time.monotonic() + PAUSE_SECONDS
        self._tell(f"can't save prompts, goes on without: {error or type(error).__name__}", once=type(error).__name__)

    async def tidy(self) -> None:
        """Removes what is too old, and the least recently used above `max_bytes`."""
        settings = self.settings
        await self._remove(
            excess(self._entries, max_bytes=settings.max_bytes, max_age_days=settings.max_age_days, now=time.time())
        )

    # Restoring

    async def file(self, saved: Saved) -> str | None:
        """The name of a file that was checked and may go to an engine; None if it was damaged, and removes it."""
        try:
            name = await asyncio.to_thread(self._folder.file, saved)
        except (Damaged, OSError) as error:
            if not isinstance(error, FileNotFoundError):  # `ctxgate prompts rm`
                log.warning("removes the saved prompt %s of model %s: %s", saved.name, saved.model, error)
            await self.drop(saved)
            return None
        if (entry := self._entries.get(saved.name)) is not None:
            entry.used = time.time()
        return name

    async def drop(self, saved: Saved) -> None:
        """Removes a saved prompt for good."""
        await self._remove([saved])

    def supports(self, key: str) -> bool:
        return key not in self._unsupported

    async def unsupported(self, key: str, model: str) -> None:
        """Restoring has no effect on this engine and model: removes their prompts and saves no more."""
        if key in self._unsupported:
            return
        self._unsupported.add(key)
        log.warning("model %s: its engine restores saved prompts without effect, so none are saved for it", model)
        await self.kept(key)
        await self._remove([entry for entry in self._entries.values() if entry.key == key])
        try:
            await asyncio.to_thread(self._write_unsupported)
        except OSError as error:
            self.failed(error)

    async def _remove(self, entries: Iterable[Saved]) -> None:
        names = [entry.name for entry in entries]
        for name in names:
            self._entries.pop(name, None)
        if names:
            await asyncio.to_thread(self._unlink, names)

    def _unlink(self, names: list[str]) -> None:
        for name in names:
            try:
                self._folder.remove(name)
            except OSError as error:
                log.warning("can't remove the saved prompt %s: %s", name, error)

    def _read_unsupported(self) -> set[str]:
        try:
            return set((self.path / UNSUPPORTED).read_text("ascii").split())
        except FileNotFoundError:
            return set()

    def _write_unsupported(self) -> None:
        (self.path / UNSUPPORTED).write_text("\n".join(sorted(self._unsupported)) + "\n", "ascii")

    def _tell(self, message: str, *, once: str | None = None) -> None:
        if (about := once or message) not in self._told:
            self._told.add(about)
            log.warning("%s", message)

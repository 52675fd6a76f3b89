"""The saved prompts of all engines of a gateway: their files, limits and counters."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from pathlib import Path

from gateway.config import Prompts
from gateway.prompts.ahead import ChecksAhead
from gateway.prompts.blocks import Chain
from gateway.prompts.folder import Damaged, Folder
from gateway.prompts.index import Match, Saved, best, excess, superseded
from gateway.prompts.sharing import SPARE_BYTES, SharedPrompts
from gateway.prompts.troubles import Troubles
from gateway.prompts.unsupported import Unsupported

log = logging.getLogger("ctxgate")


class SavedPrompts:
    """path: their folder; made on first use. saves, restores: counts since the start. useless: keys of engines that
    restore without effect."""

    def __init__(self, settings: Prompts, path: Path) -> None:
        self.settings = settings
        self.saves = self.restores = 0
        self.folder = Folder(path)
        self.troubles = Troubles()
        self.useless = Unsupported(path)
        self._entries: dict[str, Saved] = {}
        self.share = SharedPrompts(settings, self.folder, self._entries, self._came, self.troubles)
        self._opened = asyncio.Lock()
        self._is_open = False
        self._bytes_per_token: dict[str, float] = {}
        self._ahead = ChecksAhead(self.folder)
        self._keeping: dict[asyncio.Task[None], str] = {}
        """Tasks of `keep_later`, with their keys."""

    @property
    def path(self) -> Path:
        return self.folder.path

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
            await asyncio.to_thread(self.folder.make)
        except OSError as error:
            self.troubles.failed(error)
            return None
        return self.path

    async def open(self) -> None:
        """Reads the folder, once. Raises OSError."""
        async with self._opened:
            if self._is_open:
                return
            self._entries.update(await asyncio.to_thread(self.folder.open))
            await asyncio.to_thread(self.useless.read)
            self._is_open = True
            await self.tidy()

    def best(self, key: str, chain: Chain) -> Match | None:
        return best(self._entries.values(), key, chain)

    # Saving

    def refuses(self, key: str, tokens: int, *, least: int | None = None) -> bool:
        """Whether a prompt of that many tokens shouldn't be saved now. Logs the reason, once. least: of tokens; None:
        as configured."""
        settings = self.settings
        if settings.save == "off" or key in self.useless or self.troubles.paused:
            return True
        if tokens < (settings.min_tokens if least is None else least):
            return True
        size = tokens * self._bytes_per_token.get(key, 0.0)
        if size > settings.max_bytes:
            told = f"prompts of {int(size)} bytes aren't saved: prompts.max_bytes is {settings.max_bytes}"
            self.troubles.tell(told, once="max_bytes")
            return True
        try:
            short = self.folder.free() < size + SPARE_BYTES
        except OSError as error:
            self.troubles.failed(error)
            return True
        if short:
            self.troubles.failed(OSError(f"{self.path} has less than {SPARE_BYTES} bytes left"))
        return short

    async def keep(self, fresh: str, saved: Saved) -> None:
        """Takes over a file that an engine wrote, then enforces the limits. Raises OSError, Damaged."""
        saved = await asyncio.to_thread(self.folder.keep, fresh, saved)
        self._bytes_per_token[saved.key] = saved.size / saved.tokens
        self.saves += 1
        older = superseded(self._entries.values(), saved)
        await self._remove(older)
        await self._came(saved)
        self.share.put(saved, older)

    async def _came(self, saved: Saved) -> None:
        """A prompt is in the folder."""
        self._entries[saved.name] = saved
        await self.tidy()

    def keep_later(self, fresh: str, saved: Saved) -> None:
        """Like `keep`, but in the background; `kept` waits for it. Logs a failure instead of raising it."""
        task = asyncio.create_task(self._keep_or_discard(fresh, saved), name=f"keep a prompt of {saved.model}")
        self._keeping[task] = saved.key
        task.add_done_callback(self._keeping.pop)

    async def kept(self, key: str | None = None) -> None:
        """Returns once all earlier calls of `keep_later` are done, or those for one key. Raises nothing."""
        # Not those that are added meanwhile: on a busy engine, this would never end.
        if waiting := [task for task, its in self._keeping.items() if key is None or its == key]:
            await asyncio.wait(waiting)

    async def _keep_or_discard(self, fresh: str, saved: Saved) -> None:
        try:
            await self.keep(fresh, saved)
        except (Damaged, OSError) as error:
            self.troubles.failed(error)
            await self.discard(fresh)

    async def discard(self, fresh: str) -> None:
        """Removes a file that an engine wrote and nobody needs."""
        await asyncio.to_thread(self.folder.remove, fresh)

    async def tidy(self) -> None:
        """Removes prompts that are too old, and the least recently used ones above `max_bytes`."""
        settings = self.settings
        await self._remove(
            excess(self._entries, max_bytes=settings.max_bytes, max_age_days=settings.max_age_days, now=time.time())
        )

    # Restoring

    async def check_ahead(self, model: str) -> None:
        """An engine of that model loads: begins to check the prompt that was used last, whose conversation is the
        likeliest to go on. Raises nothing."""
        try:
            await self.open()
        except OSError as error:
            self.troubles.failed(error)
            return
        its = [entry for entry in self._entries.values() if entry.model == model]
        last = max(its, key=lambda entry: entry.used, default=None)
        if last is not None:
            self._ahead.begin(last)

    async def file(self, saved: Saved) -> str | None:
        """The name of a checked file that an engine may read; None for a damaged one, which is removed."""
        await self._ahead.done(saved)
        try:
            name = await asyncio.to_thread(self.folder.file, saved)
        except (Damaged, OSError) as error:
            if not isinstance(error, FileNotFoundError):  # `ctxgate prompts rm`
                log.warning("removes the saved prompt %s of model %s: %s", saved.name, saved.model, error)
            await self.drop(saved)
            return None
        if (entry := self._entries.get(saved.name)) is not None:
            entry.used = time.time()
        return name

    async def drop(self, saved: Saved) -> None:
        """Removes a saved prompt, also from the share."""
        await self._remove([saved])
        self.share.remove(saved)

    async def unsupported(self, key: str, model: str) -> None:
        """Restoring has no effect with this engine and model: removes their prompts, and saves no more of them."""
        if key in self.useless:
            return
        self.useless.add(key)
        self.share.forget(key)
        log.warning("model %s: its engine restores saved prompts without effect, so none are saved for it", model)
        await self.kept(key)
        await self._remove([entry for entry in self._entries.values() if entry.key == key])
        try:
            await asyncio.to_thread(self.useless.write)
        except OSError as error:
            self.troubles.failed(error)

    async def _remove(self, entries: Iterable[Saved]) -> None:
        names = [entry.name for entry in entries]
        for name in names:
            self._entries.pop(name, None)
        if names:
            await asyncio.to_thread(self.folder.remove_all, names)

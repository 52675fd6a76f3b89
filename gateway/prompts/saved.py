"""The saved prompts of all engines of a gateway: their files, limits and counters."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from gateway.config import Prompts
from gateway.prompts.blocks import Chain
from gateway.prompts.folder import PROMPT, Damaged, Folder
from gateway.prompts.index import Match, Saved, best, excess, superseded
from gateway.prompts.key import FileVersion

if TYPE_CHECKING:
    from gateway.prompts.share import Share

log = logging.getLogger("ctxgate")

SPARE_BYTES = 256 * 1024 * 1024
"""Bytes that must stay free on the file system when prompts are saved."""
PAUSE_SECONDS = 60.0
"""Pause after a failure to save, such as a full disk."""
SHARED_SECONDS = 20.0
"""How long to wait at shutdown for files on their way to the share."""
MOST_AHEAD = 1024 * 1024 * 1024
"""The largest file to check before a request needs it: about a second's work."""
CONTROL_TOKENS = "control_tokens"
"""The file beside the folder with those of models."""
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
        self._ahead: dict[str, asyncio.Task[None]] = {}
        """Saved prompts that are checked while an engine loads, by name."""
        self._keeping: dict[asyncio.Task[None], str] = {}
        """Tasks of `keep_later`, with their keys."""
        self._share: Share | None = None
        self._shared_keys: dict[str, str] = {}
        """Keys of this machine's engines → those of the share."""
        self._sharing: dict[asyncio.Task[None], str] = {}
        """Transfers to and from the share, with the names."""
        self._one_upload = asyncio.Lock()

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
        """Whether a prompt of that many tokens shouldn't be saved now. Logs the reason, once."""
        settings = self.settings
        if tokens < settings.min_tokens:
            return True
        return self.short(key, tokens)

    def short(self, key: str, tokens: int) -> bool:
        """Like `refuses`, for prompts of any length."""
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
        """Takes over a file that an engine wrote, then enforces the limits. Raises OSError, Damaged."""
        saved = await asyncio.to_thread(self._folder.keep, fresh, saved)
        self._bytes_per_token[saved.key] = saved.size / saved.tokens
        self.saves += 1
        older = superseded(self._entries.values(), saved)
        await self._remove(older)
        self._entries[saved.name] = saved
        await self.tidy()
        self._put(saved, older)

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
            self.failed(error)
            await self.discard(fresh)

    async def discard(self, fresh: str) -> None:
        """Removes a file that an engine wrote and nobody needs."""
        await asyncio.to_thread(self._folder.remove, fresh)

    def failed(self, error: Exception) -> None:
        """Stops saving for a while; logs that the first time."""
        self.failures += 1
        self._paused_until = time.monotonic() + PAUSE_SECONDS
        self._tell(
            f"can't save prompts, goes on without: {str(error) or type(error).__name__}", once=type(error).__name__
        )

    async def tidy(self) -> None:
        """Removes prompts that are too old, and the least recently used ones above `max_bytes`."""
        settings = self.settings
        await self._remove(
            excess(self._entries, max_bytes=settings.max_bytes, max_age_days=settings.max_age_days, now=time.time())
        )

    # Restoring

    async def look_ahead(self, model: str) -> None:
        """An engine of that model loads: begins to check the prompt that was used last, whose conversation is the
        likeliest to go on. Raises nothing."""
        try:
            await self.open()
        except OSError as error:
            self.failed(error)
            return
        its = [entry for entry in self._entries.values() if entry.model == model]
        last = max(its, key=lambda entry: entry.used, default=None)
        if last is not None and last.size <= MOST_AHEAD and last.name not in self._ahead:
            task = self._ahead[last.name] = asyncio.create_task(self._check(last), name=f"check {last.name}")
            task.add_done_callback(lambda _: self._ahead.pop(last.name))

    async def _check(self, saved: Saved) -> None:
        with contextlib.suppress(Damaged, OSError):  # `file` tells it if a request comes for it
            await asyncio.to_thread(self._folder.check, saved)

    async def file(self, saved: Saved) -> str | None:
        """The name of a checked file that an engine may read; None for a damaged one, which is removed."""
        if (ahead := self._ahead.get(saved.name)) is not None:
            await asyncio.wait({ahead})
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
        """Removes a saved prompt, also from the share."""
        await self._remove([saved])
        if (key := self._shared_keys.get(saved.key)) is not None and (share := self._place()) is not None:
            self._later(saved.name, share.run(share.remove, key, [saved.name]))

    async def control_tokens(
        self, key: str, read: Callable[[], Awaitable[dict[str, list[int]]]]
    ) -> Mapping[str, list[int]]:
        """The control tokens for the key: remembered from an earlier engine, else from `read`."""
        from gateway.prompts import control_tokens  # the gateway's start needn't wait for it

        file = self.path.with_name(CONTROL_TOKENS)
        known = await asyncio.to_thread(control_tokens.remembered, file, key)
        if known is not None:
            return known
        found = await read()
        if found:
            try:
                await asyncio.to_thread(control_tokens.remember, file, key, found)
            except OSError as error:
                log.debug("can't write %s: %s", file, error)
        return found

    def supports(self, key: str) -> bool:
        return key not in self._unsupported

    async def unsupported(self, key: str, model: str) -> None:
        """Restoring has no effect with this engine and model: removes their prompts, and saves no more of them."""
        if key in self._unsupported:
            return
        self._unsupported.add(key)
        self._shared_keys.pop(key, None)
        log.warning("model %s: its engine restores saved prompts without effect, so none are saved for it", model)
        await self.kept(key)
        await self._remove([entry for entry in self._entries.values() if entry.key == key])
        try:
            await asyncio.to_thread(self._write_unsupported)
        except OSError as error:
            self.failed(error)

    # Sharing

    def shares(self, key: str, shared: str) -> None:
        """Notes that engines with this key share their prompts under the key `shared`."""
        self._shared_keys[key] = shared

    async def fetch(self, key: str, chain: Chain, more_than: int, seconds: float) -> None:
        """Fetches the shared prompt that has the most in common with `chain`, if that is more than `more_than` blocks.

        Returns within `seconds`; a longer transfer continues, for later requests. Raises nothing.
        """
        share, shared_key = self._place(), self._shared_keys.get(key)
        if share is not None and shared_key is not None:
            await asyncio.wait(
                {self._later(key, self._fetch(share, key, shared_key, chain, more_than))}, timeout=seconds
            )

    async def shared(self) -> None:
        """Returns once all files are in the share, or after SHARED_SECONDS. Raises nothing."""
        if self._sharing:
            await asyncio.wait([*self._sharing], timeout=SHARED_SECONDS)

    async def _fetch(self, share: Share, key: str, shared_key: str, chain: Chain, more_than: int) -> None:
        found = await share.run(share.list, shared_key)
        match = best(found.values(), shared_key, chain)
        if match is None or match.blocks <= more_than or match.saved.name in self._sharing.values():
            return
        saved = replace(match.saved, key=key, used=time.time())
        if saved.name in self._entries or saved.size > min(self.settings.max_bytes, self._folder.free() - SPARE_BYTES):
            return
        await self._later(saved.name, self._bring(share, match.saved, saved))

    async def _bring(self, share: Share, there: Saved, saved: Saved) -> None:
        fresh = self._folder.fresh()
        try:
            await share.run(share.get, there, self.path / fresh)
            saved = await asyncio.to_thread(self._folder.keep, fresh, saved)
        except Damaged as error:
            log.warning("removes the shared prompt %s of model %s: %s", there.name, there.model, error)
            await share.run(share.remove, there.key, [there.name])
            return
        except BaseException:
            await self.discard(fresh)
            raise
        self._entries[saved.name] = saved
        await self.tidy()

    def _put(self, saved: Saved, older: Iterable[Saved]) -> None:
        share, key = self._place(), self._shared_keys.get(saved.key)
        if share is not None and key is not None:
            self._later(saved.name, self._share_and_tidy(share, replace(saved, key=key), [each.name for each in older]))

    async def _share_and_tidy(self, share: Share, saved: Saved, older: list[str]) -> None:
        settings = self.settings
        async with self._one_upload:
            # In order, so that each removes its predecessors; a later turn may have made this one superfluous.
            if saved.name in self._entries:
                try:
                    await share.run(share.put, saved, self.path / (saved.name + PROMPT))
                except FileNotFoundError:
                    if saved.name in self._entries:
                        raise
            await share.run(share.remove, saved.key, older)
            await share.run(share.tidy, settings.max_bytes, settings.max_age_days)

    def _place(self) -> Share | None:
        if self._share is None and self.settings.share is not None:
            from gateway.prompts.share import Share  # most gateways have none

            self._share = Share(self.settings.share)
        return self._share

    def _later(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._quietly(work), name=f"shared prompt {name}")
        self._sharing[task] = name
        task.add_done_callback(self._sharing.pop)
        return task

    async def _quietly(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - each file system has its own; none may cost an answer
            self.failures += 1
            self._tell(f"prompts.share: {type(error).__name__}: {error}", once=f"share {type(error).__name__}")

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

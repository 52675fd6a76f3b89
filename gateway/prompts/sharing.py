"""Copies of saved prompts in the place that several machines share. A failure costs only the copy."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from gateway.config import Prompts
from gateway.feature import offered
from gateway.prompts.blocks import Chain
from gateway.prompts.folder import PROMPT, Damaged, Folder
from gateway.prompts.index import Saved, best
from gateway.prompts.troubles import Troubles

log = logging.getLogger("ctxgate")

T = TypeVar("T")


class Share(Protocol):
    """Prompts at a place that other machines reach. All methods but `run` block, and raise what its storage raises."""

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """Calls one of the others in a thread."""

    def list(self, key: str) -> Mapping[str, Saved]: ...
    def put(self, saved: Saved, file: Path) -> None: ...
    def get(self, saved: Saved, to: Path) -> None: ...
    def remove(self, key: str, names: Iterable[str]) -> None: ...
    def tidy(self, max_bytes: int, max_age_days: float) -> None: ...


SPARE_BYTES = 256 * 1024 * 1024
"""Bytes that must stay free on the file system when prompts are saved."""
SHARED_SECONDS = 20.0
"""How long to wait at shutdown for files on their way to the share."""


class SharedPrompts:
    """entries: the saved prompts of this machine, by name. came: takes over a prompt from the share."""

    def __init__(
        self,
        settings: Prompts,
        folder: Folder,
        entries: Mapping[str, Saved],
        came: Callable[[Saved], Awaitable[None]],
        troubles: Troubles,
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._entries = entries
        self._came = came
        self._troubles = troubles
        self._share: Share | None = None
        self._keys: dict[str, str] = {}
        """Keys of this machine's engines → those of the share."""
        self._transfers: dict[asyncio.Task[None], str] = {}
        """Transfers to and from the share, with the names."""
        self._one_upload = asyncio.Lock()

    def maps(self, key: str, shared: str) -> None:
        """Notes that engines with this key share their prompts under the key `shared`."""
        self._keys[key] = shared

    def forget(self, key: str) -> None:
        """Engines with this key share nothing any more."""
        self._keys.pop(key, None)

    async def fetch(self, key: str, chain: Chain, more_than: int, seconds: float) -> None:
        """Fetches the shared prompt that has the most in common with `chain`, if that is more than `more_than` blocks.

        Returns within `seconds`; a longer transfer continues, for later requests. Raises nothing.
        """
        share, shared_key = self._place(), self._keys.get(key)
        if share is not None and shared_key is not None:
            await asyncio.wait(
                {self._later(key, self._fetch(share, key, shared_key, chain, more_than))}, timeout=seconds
            )

    def put(self, saved: Saved, older: Iterable[Saved]) -> None:
        """Copies a prompt there, and removes those that it replaces."""
        share, key = self._place(), self._keys.get(saved.key)
        if share is not None and key is not None:
            self._later(saved.name, self._put(share, replace(saved, key=key), [each.name for each in older]))

    def remove(self, saved: Saved) -> None:
        """Removes a prompt that is damaged, or helps no engine."""
        if (key := self._keys.get(saved.key)) is not None and (share := self._place()) is not None:
            self._later(saved.name, share.run(share.remove, key, [saved.name]))

    async def done(self) -> None:
        """Returns once all files are in the share, or after SHARED_SECONDS. Raises nothing."""
        if self._transfers:
            await asyncio.wait([*self._transfers], timeout=SHARED_SECONDS)

    async def _fetch(self, share: Share, key: str, shared_key: str, chain: Chain, more_than: int) -> None:
        found = await share.run(share.list, shared_key)
        match = best(found.values(), shared_key, chain)
        if match is None or match.blocks <= more_than or match.saved.name in self._transfers.values():
            return
        saved = replace(match.saved, key=key, used=time.time())
        free = self._folder.free() - SPARE_BYTES
        if saved.name in self._entries or saved.size > min(self._settings.max_bytes, free):
            return
        await self._later(saved.name, self._bring(share, match.saved, saved))

    async def _bring(self, share: Share, there: Saved, saved: Saved) -> None:
        fresh = self._folder.fresh()
        try:
            await share.run(share.get, there, self._folder.path / fresh)
            saved = await asyncio.to_thread(self._folder.keep, fresh, saved)
        except Damaged as error:
            log.warning("removes the shared prompt %s of model %s: %s", there.name, there.model, error)
            await share.run(share.remove, there.key, [there.name])
            return
        except BaseException:
            await asyncio.to_thread(self._folder.remove, fresh)
            raise
        await self._came(saved)

    async def _put(self, share: Share, saved: Saved, older: list[str]) -> None:
        settings = self._settings
        async with self._one_upload:
            # In order, so that each removes its predecessors; a later turn may have made this one superfluous.
            if saved.name in self._entries:
                try:
                    await share.run(share.put, saved, self._folder.path / (saved.name + PROMPT))
                except FileNotFoundError:
                    if saved.name in self._entries:
                        raise
            await share.run(share.remove, saved.key, older)
            await share.run(share.tidy, settings.max_bytes, settings.max_age_days)

    def _place(self) -> Share | None:
        if self._share is None and self._settings.share is not None:
            share: Callable[[str], Share] = offered("share")
            self._share = share(self._settings.share)
        return self._share

    def _later(self, name: str, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._quietly(work), name=f"shared prompt {name}")
        self._transfers[task] = name
        task.add_done_callback(self._transfers.pop)
        return task

    async def _quietly(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - each file system has its own; none may cost an answer
            self._troubles.note(f"prompts.share: {type(error).__name__}: {error}", f"share {type(error).__name__}")

"""What an engine process is, so that it gets only files of engines that compute the same."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from gateway.prompts import key as keys
from gateway.prompts.background import Background
from gateway.prompts.protocols import TROUBLE, Build, SlotServer
from gateway.prompts.saved import SavedPrompts

log = logging.getLogger("ctxgate")

CONTROL_TOKENS = "control_tokens"
"""The file beside the folder with those of models."""


class EngineIdentity:
    """For one engine process, which is asked once.

    prints: what its key depends on, taken before it started and again now. anywhere: the same in a form that holds on
    other machines; None: nothing is shared. key: of its files; None until it is known, and if nothing is saved.
    """

    def __init__(
        self,
        saved: SavedPrompts,
        prints: Callable[[], list[str]],
        began_with: list[str],
        anywhere: Callable[[], list[str]] | None,
        background: Background,
    ) -> None:
        self.key: str | None = None
        self.known = self._told = False
        self.sharing: asyncio.Task[None] | None = None
        """The task that computes the key of the share."""
        self._saved = saved
        self._prints = prints
        self._began_with = began_with
        self._anywhere = anywhere
        self._background = background
        self._asked = asyncio.Lock()

    @property
    def unsaved(self) -> bool:
        """Whether the engine has no files, and never will."""
        return self._saved.settings.save == "off" or (self.known and self.key is None)

    async def ask(self, server: SlotServer, opened: Callable[[int], None]) -> None:
        """opened: is told the number of slots, once."""
        async with self._asked:
            if self.known:
                return
            try:
                build = await server.build()
            except TROUBLE as error:
                if self._saved.settings.save != "off":
                    self._saved.troubles.failed(error)
                return
            if not self._told:
                opened(build.slots if build is not None else 0)
                self._told = True
            try:
                if build is not None and self._saved.settings.save != "off":
                    await self._saved.open()
                    self._use(build, await asyncio.to_thread(self._prints))
            except TROUBLE as error:
                self._saved.troubles.failed(error)
            self.known = True  # not if the request was cancelled: the next one goes on

    async def control_tokens(self, read: Callable[[], Awaitable[dict[str, list[int]]]]) -> Mapping[str, list[int]]:
        """The control tokens of the vocabulary: remembered from an engine with the same key, else from `read`."""
        if self.key is None:
            return await read()
        from gateway.prompts import control_tokens  # the gateway's start needn't wait for it

        file = self._saved.path.with_name(CONTROL_TOKENS)
        known = await asyncio.to_thread(control_tokens.remembered, file, self.key)
        if known is not None:
            return known
        found = await read()
        if found:
            try:
                await asyncio.to_thread(control_tokens.remember, file, self.key, found)
            except OSError as error:
                log.debug("can't write %s: %s", file, error)
        return found

    def give_up(self) -> None:
        """Its files don't help it: uses none any more."""
        self.key = None

    def _use(self, build: Build, prints: list[str]) -> None:
        """prints: what the key depends on, as it is now."""
        key = keys.key(self._began_with, build.slots, build.facts)
        if prints != self._began_with or key in self._saved.useless:
            return
        self.key = key
        if self._anywhere is not None and self._saved.settings.share is not None:
            self.sharing = self._background.start(self._share(key, self._anywhere, build))

    async def _share(self, key: str, anywhere: Callable[[], list[str]], build: Build) -> None:
        """Computes the key of the share; the first time, this reads all weights."""
        facts = await asyncio.to_thread(anywhere)
        self._saved.share.maps(key, keys.key("shared", facts, build.slots, build.facts))

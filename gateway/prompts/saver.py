"""Has an engine write its slots to files, those that are worth it."""

from __future__ import annotations

import asyncio
import logging
import time

from gateway.prompts import folder
from gateway.prompts.background import Background
from gateway.prompts.blocks import shared
from gateway.prompts.identity import EngineIdentity
from gateway.prompts.index import Saved
from gateway.prompts.protocols import SAVE_SECONDS, TROUBLE, SlotServer
from gateway.prompts.saved import SavedPrompts
from gateway.prompts.slots import MANY, Hosted, Slot, tokens_of
from gateway.prompts.table import SlotTable

log = logging.getLogger("ctxgate")

STOP_SECONDS = 60.0
"""For all files of an engine that ends."""
RECALL_SECONDS = 2.0
"""Time limit for bringing a prompt back from the engine's cache; reading it again takes longer."""
TOLERANCE = 8
"""Tokens by which an engine's counts may differ: the last one, drafts."""
WORTH = 200
"""A prompt is saved again once it has grown by a 200th."""


class SlotSaver:
    """For one engine process. lock: one save at a time: asked to save several busy slots, an engine forgets some until
    the next answer ends."""

    def __init__(self, saved: SavedPrompts, model: str, identity: EngineIdentity, table: SlotTable) -> None:
        self.lock = asyncio.Lock()
        self._saved = saved
        self._model = model
        self._identity = identity
        self._table = table

    async def save(self, server: SlotServer, slot: Slot, *, only_idle: bool = False, prefix: bool = False) -> None:
        """Saves one slot if it is worth a file. Raises nothing. only_idle: does nothing if the slot is busy once the
        lock is free: the engine would save it only after that answer, and all other saves would wait. prefix: see
        `Saved`.

        Returns once the engine has written the file; checking it and flushing it to disk go on.
        """
        key, tokens, begins, unsaved = self._identity.key, slot.tokens, slot.chain, slot.unsaved
        if key is None or not begins or slot.owner == MANY or (tokens is not None and unsaved <= tokens // WORTH):
            return
        saved = self._saved
        if saved.refuses(key, tokens if tokens is not None else tokens_of(len(begins))):
            return
        fresh = saved.folder.fresh()
        try:
            async with self.lock, asyncio.timeout(SAVE_SECONDS):
                if only_idle and slot.busy:
                    return
                count, size = await server.save(slot.number, fresh)
            expected = tokens if tokens is not None else max(count, saved.settings.min_tokens)
            exact = abs(count - expected) <= TOLERANCE and slot.chain == begins
            if count < expected - TOLERANCE or shared(slot.chain, begins) < len(begins):
                # Another prompt has taken the slot, or the answer was cut off early.
                await saved.discard(fresh)
                return
            now = time.time()
            description = Saved(
                name=folder.name(), key=key, model=self._model, size=size, sha256="", tokens=count, chain=begins,
                # Its next turn may have come before the engine wrote the file: the same beginning, and more.
                sure=slot.sure and exact, saved=now, used=now, prefix=prefix,
            )  # fmt: skip
            saved.keep_later(fresh, description)
            if exact:
                slot.saved(count, unsaved)
        except TROUBLE as error:
            saved.troubles.failed(error)
            await saved.discard(fresh)

    async def save_idle(self, server: SlotServer, slot: Slot) -> None:
        """See `save`."""
        if not slot.busy:
            await self.save(server, slot, only_idle=True)

    async def save_all(self, server: SlotServer, background: Background) -> None:
        """Has the engine write all prompts that no file has yet, before it ends. background: to wait for first.

        Raises nothing, takes STOP_SECONDS at most. `SavedPrompts.kept` waits for the files.
        """
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await background.done()
                for slot in self._table.slots:
                    # Saving waits for the answer in a slot; an answer that is cut off now isn't worth the wait.
                    if not slot.busy:
                        await self.save(server, slot)
                for hosted in self._table.hosted:
                    if hosted.unsaved:
                        await self._save_hosted(server, hosted)
        except TROUBLE as error:
            log.debug("model %s: its prompts were not all saved: %s", self._model, error)

    async def _save_hosted(self, server: SlotServer, hosted: Hosted) -> None:
        """Brings a prompt back from the engine's cache, if it is still there, and saves it."""
        try:
            async with asyncio.timeout(RECALL_SECONDS):
                await server.recall(hosted.prompt)
        except TimeoutError:
            return
        number, tokens = next(iter(await server.held() or ()), (0, 0))
        slot = self._table.slots[number]
        sure = len(self._table.slots) == 1
        slot.hold(hosted.chain, hosted.prompt, tokens, unsaved=tokens, sure=sure)
        await self.save(server, slot)
        slot.forget()

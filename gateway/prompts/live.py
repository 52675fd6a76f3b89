"""The prompts of one running engine: assigns requests to slots, restores saved prompts, saves those about to be lost.

If anything goes wrong, the engine reads the prompt itself: nothing here makes a request fail.

Each part can be read alone: `slots` chooses (pure), `table` holds who is in which slot and who waits for one,
`placement` brings requests there, `prefixes` reads what several of them share, `saver` writes files, `identity` says
which files are the engine's, and `outcomes` whether they help it. `LivePrompts` leads a request through them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path

from gateway.config import Prompts
from gateway.line import Tell, ignore
from gateway.prompts.background import Background
from gateway.prompts.blocks import Chain, chain, chain_of, shared
from gateway.prompts.identity import EngineIdentity
from gateway.prompts.outcomes import Outcomes
from gateway.prompts.placement import Placement
from gateway.prompts.prefixes import LONG_SECONDS, Costs, PrefixPlan, PrefixReader, plan
from gateway.prompts.protocols import TROUBLE, SlotServer, is_short
from gateway.prompts.saved import SavedPrompts
from gateway.prompts.saver import SlotSaver
from gateway.prompts.slots import BYTES_PER_TOKEN, SHORT_BLOCK_BYTES, tokens_of
from gateway.prompts.speed import ReadingSpeed, Waits
from gateway.prompts.table import SlotTable
from gateway.prompts.turn import Turn

log = logging.getLogger("ctxgate")


class LivePrompts:
    """For one engine process. prints, anywhere: see `EngineIdentity`; a server of somebody else has no prints."""

    def __init__(
        self,
        saved: SavedPrompts,
        model: str,
        prints: Callable[[], list[str]],
        began_with: list[str],
        anywhere: Callable[[], list[str]] | None = None,
    ) -> None:
        self.saved = saved
        self.speed = ReadingSpeed()
        self.table = SlotTable(alone=bool(began_with))
        self._model = model
        self._background = Background(model)
        self._identity = EngineIdentity(saved, prints, began_with, anywhere, self._background)
        self.saver = SlotSaver(saved, model, self._identity, self.table)
        outcomes = Outcomes(saved, model, self._identity, self.table, self.saver, self.speed, self._background)
        self._placement = Placement(saved, self._identity, self.table, self.saver, self.speed, outcomes.complete)
        self._prefixes = PrefixReader(self._plan, self._carry_out, self._background, self.speed)

    # A request

    async def place(
        self,
        server: SlotServer,
        sent: Sequence[bytes],
        render: Callable[[], Awaitable[str | None]],
        *,
        private: bool,
        owner: str = "",
        other: Callable[[], Awaitable[str | None]] | None = None,
        tell: Tell = ignore,
    ) -> Turn | None:
        """A place for a request; None if saved prompts don't apply to it, and it may reuse whatever the engine holds.

        sent: its tools and messages, in JSON. render: its prompt as the model's template makes it. private: save
        nothing of it. owner: see `gateway.wire.chat.Caller`. other: see `PrefixReader.ready`; None: it shares nothing.
        tell: is given what it waits for.
        """
        apart = self.admit_owner(owner)
        if not apart and self._identity.unsaved:
            return None
        try:
            if private or is_short(sent, self.saved.settings):
                return await self.place_short(server, b"".join(sent), private=private, owner=owner)
            prompt = await render() if await self.know(server) or apart else None
            if prompt is None:
                return await self.place_short(server, b"", private=True, owner=owner)
            return await self.place_long(server, prompt, owner, other, tell)
        except TROUBLE as error:
            log.debug("model %s: no slot for a prompt: %s", self._model, error)
            return self.anywhere(server, owner) if apart else None

    def admit_owner(self, owner: str) -> bool:
        """See `SlotTable.admit_owner`."""
        return self.table.admit_owner(owner)

    def anywhere(self, server: SlotServer, owner: str | None = None) -> Turn | None:
        """The place of a request that may take any slot; None: it may reuse what the engine holds. owner: None if
        unknown."""
        if owner is not None:
            self.admit_owner(owner)
        if not self.table.owners.several:
            self.table.disturb()
            return None
        return self._placement.turn(server, None, "", (), owner or "")

    async def place_short(self, server: SlotServer, sent: bytes, *, private: bool, owner: str = "") -> Turn | None:
        """A place for a request that won't be saved. sent: its text, whose prefix other short requests may share."""
        apart = self.admit_owner(owner)
        if apart:
            await self.know(server)
        short = chain_of(b"" if private else sent, SHORT_BLOCK_BYTES, owner)
        reads = len(sent) / BYTES_PER_TOKEN * self.speed.seconds_per_token
        return await self._placement.short(server, short, owner, reads, private=private, apart=apart)

    async def place_long(
        self,
        server: SlotServer,
        prompt: str,
        owner: str = "",
        other: Callable[[], Awaitable[str | None]] | None = None,
        tell: Tell = ignore,
    ) -> Turn | None:
        """A place for a rendered prompt. other, tell: see `place`. Raises one of TROUBLE."""
        apart = self.admit_owner(owner)
        if not await self.know(server) and not apart:
            return None
        begins = chain(prompt, owner)
        if (key := self._identity.key) is not None:
            await self._fetch(key, begins)
            if other is not None and self.speed.seconds(len(begins)) >= LONG_SECONDS:
                await self._prefixes.ready(server, prompt, begins, other, owner, tell)
        reads = self._reads(begins)
        tell(Waits("slot", reads, self.speed).describe)
        return await self._placement.long(server, prompt, begins, owner, reads)

    def _reads(self, begins: Chain) -> float:
        """For how many seconds the engine will read this prompt."""
        return self.speed.seconds(len(begins) - self._known_blocks(begins))

    def _known_blocks(self, begins: Chain) -> int:
        """How many blocks of a prompt the engine or this disk has."""
        key = self._identity.key
        match = self.saved.best(key, begins) if key is not None else None
        held = [*(slot.chain for slot in self.table.slots), *(hosted.chain for hosted in self.table.hosted)]
        return max([match.blocks if match is not None else 0, *(shared(each, begins) for each in held)])

    async def _fetch(self, key: str, begins: Chain) -> None:
        """Fetches a prompt from the share if neither the engine nor this disk has it, unless reading it is faster."""
        least, known = self.speed.worth(begins), self._known_blocks(begins)
        if len(begins) - known >= least:
            seconds = self.speed.seconds(len(begins) - known)
            end = time.monotonic() + seconds
            if self._identity.sharing is not None:
                await asyncio.wait({self._identity.sharing}, timeout=seconds)
            await self.saved.share.fetch(key, begins, known + least - 1, max(0.0, end - time.monotonic()))

    async def know(self, server: SlotServer) -> bool:
        """Identifies the engine; returns whether its slots can be saved and restored."""
        identity = self._identity
        if not identity.known and (self.saved.settings.save != "off" or self.table.owners.several):
            await identity.ask(server, self.table.open)
        return identity.key is not None

    @property
    def key(self) -> str | None:
        """See `EngineIdentity`."""
        return self._identity.key

    async def control_tokens(
        self, server: SlotServer, read: Callable[[], Awaitable[dict[str, list[int]]]]
    ) -> Mapping[str, list[int]]:
        """See `EngineIdentity.control_tokens`."""
        await self.know(server)
        return await self._identity.control_tokens(read)

    async def take(self, server: SlotServer, begun: Turn | None = None, owner: str = "") -> Turn:
        """See `Placement.take`."""
        self.admit_owner(owner)
        await self.know(server)
        return await self._placement.take(server, begun, owner)

    # Prefixes

    def _plan(self, prefix: Chain, owner: str, going: Collection[bytes]) -> PrefixPlan:
        """See `PrefixReader`."""
        key, table = self._identity.key, self.table
        match = self.saved.best(key, prefix) if key is not None else None
        costs = Costs(self.speed.seconds(1), tokens_of(1) * self.speed.copying)
        found = plan(prefix, table.slots, match, going, costs, owner if table.owners.several else None)
        if found.step == "ready" and match is not None:
            match.saved.used = time.time()
        return found

    async def _carry_out(self, server: SlotServer, found: PrefixPlan, text: str, prefix: Chain, owner: str) -> None:
        """See `PrefixReader`. Raises one of TROUBLE."""
        if found.slot is None:
            turn = await self._placement.long(server, text, prefix, owner, self._reads(prefix))
        elif found.slot.idle:
            turn = self._placement.turn(server, found.slot, text, prefix, owner)
        else:
            return
        slot = turn.taken
        try:
            if slot is None:
                return
            if found.slot is None:
                with turn:
                    read = await server.read(slot.number, text, reuse=not turn.fresh)
                self.speed.read(read)
                turn.holds(read.tokens)
            await self.saver.save(server, slot, prefix=found.slot is None)
        finally:
            turn.leave()
        await self.saved.kept(self._identity.key)

    # Its end

    async def settled(self) -> None:
        """Returns once all work left over from answers is done."""
        await self._background.done()
        await self.saved.kept()
        await self.saved.share.done()

    async def save_all(self, server: SlotServer) -> None:
        """See `SlotSaver.save_all`."""
        self._prefixes.give_up()
        if self._identity.key is not None:
            await self.saver.save_all(server, self._background)


def unsaved(model: str) -> LivePrompts:
    """For a server that saves no prompts, and that the owner of this machine may have used already."""
    prompts = LivePrompts(SavedPrompts(Prompts(save="off"), Path()), model, list, [])
    prompts.admit_owner("")
    return prompts

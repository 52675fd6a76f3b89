"""Which requests are in which slots of an engine.

An engine that chooses a slot may take the one that the gateway has chosen for a request on its way there, which then
waits for a whole answer. So a request whose slot the engine chooses is sent only once the engine works in every slot
that the gateway chose, and the other way round.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gateway.line import Line, Waiter
from gateway.prompts.blocks import Chain, shared
from gateway.prompts.protocols import TROUBLE, SlotServer
from gateway.prompts.slots import MANY, MAX_HOSTED, Hosted, Owners, Slot

log = logging.getLogger("ctxgate")

LINE_SECONDS = 30.0
"""How long a request waits here for a slot before it waits in the engine's own queue, where nobody can say which slot
it will get."""
POLL_SECONDS, POLL_INTERVAL = 2.0, 0.005
"""How long a request waits until earlier ones are seen in their slots, and how long between two looks."""


class SlotTable:
    """For one engine process. alone: the gateway's requests are the only ones there.

    hosted: prompts in the engine's cache beside the slots. line: requests that wait for a slot.
    """

    def __init__(self, *, alone: bool) -> None:
        self.owners = Owners()
        self.slots: list[Slot] = []
        self.hosted: list[Hosted] = []
        self.line: Line[None] = Line()
        self._alone = alone
        self._uses = 0
        self._unplaced = self._unseen = 0
        """Requests for which the engine chose the slot, and how many of them haven't been seen in one yet."""

    def open(self, count: int) -> None:
        """The engine has told how many slots it has."""
        self.slots = [Slot(number) for number in range(count)]
        if self.owners.several:
            self._part()

    def admit_owner(self, owner: str) -> bool:
        """Notes that this owner uses the engine; returns whether it may hold prompts of others, which the request must
        not reuse."""
        if self.owners.enter(owner):
            self._part()
        return self.owners.several

    def _part(self) -> None:
        """Several owners use the engine. The slots that the gateway has chosen are the first one's."""
        for slot in self.slots:
            slot.own(self.owners.first or "" if slot.chain else MANY)

    @property
    def unsettled(self) -> bool:
        """Whether the engine may yet put a request into a slot that the gateway has chosen for another one."""
        return self._unplaced > 0

    def has_free(self) -> bool:
        """A slot in which another program's request works counts as free: it can't be reserved."""
        return any(not slot.busy for slot in self.slots)

    def at_stake(self, least: int) -> bool:
        """Whether a request might overwrite a prompt that is worth saving. least: tokens of one."""
        return any(slot.idle and slot.worth_saving(least) for slot in self.slots)

    @asynccontextmanager
    async def free_slot(self, reads: float) -> AsyncIterator[None]:
        """Waits until a slot is free and it is the request's turn, LINE_SECONDS at most. reads: see `Waiter`.

        The caller takes a place within; if that fails, it is the next request's turn.
        """
        came, overtaken = time.monotonic(), bool(self.line)
        while self.slots and (overtaken or not self.has_free()):
            waited = time.monotonic() - came
            waiter = self.line.add(Waiter(waited=waited, reads=reads))
            try:
                await self.line.wait(waiter, LINE_SECONDS - waited)
            except TimeoutError:
                break
            except asyncio.CancelledError:
                if waiter.served:
                    self.freed()
                raise
            overtaken = False  # but another request may have taken the slot meanwhile
        try:
            yield
        except BaseException:
            self.freed()
            raise

    def freed(self) -> None:
        """A slot became or stayed idle: the next request may have it."""
        if self.has_free():
            self.line.serve(None, 1)

    # A request

    def enter(self, slot: Slot | None) -> None:
        """A request gets this slot; None: one that the engine chooses."""
        if slot is not None:
            self._uses += 1
            slot.enter(self._uses)
        else:
            self._unplaced += 1
            self._unseen += 1
        # Another slot may be idle, too.
        self.freed()

    def began(self, slot: Slot | None) -> None:
        """The engine answers a request in this slot; None: in one that it chose."""
        if slot is not None:
            slot.begin()
        elif self._unseen:
            self._unseen -= 1

    def left(self, slot: Slot | None) -> None:
        """A request left its slot; None: the one that the engine chose."""
        if slot is not None:
            slot.leave()
            self.freed()
            return
        self._unplaced -= 1
        self._unseen = min(self._unseen, self._unplaced)
        if self.owners.several:
            for each in self.slots:
                each.disown()
        if not self._unplaced:
            for each in self.slots:
                each.strange = False

    # What the slots hold

    def disturb(self) -> None:
        """A request went to the engine that may have taken any slot."""
        for slot in self.slots:
            self.move(slot)

    def move(self, slot: Slot) -> None:
        """Another prompt took the slot, so the engine moved the slot's contents to its cache."""
        if slot.chain:
            self.hosted = [*self.hosted, Hosted(slot.chain, slot.unsaved, slot.prompt)][-MAX_HOSTED:]
        slot.forget()

    async def find(self, server: SlotServer, chain: Chain, prompt: str, tokens: int) -> None:
        """Finds out which slot the engine chose for a request that has ended there with so many tokens."""
        found = [number for number, held in await server.held() or () if abs(held - tokens) <= 1]
        if found and not self.slots[found[0]].busy:
            self.took(self.slots[found[0]], chain, prompt, tokens)
            return
        for slot in self.slots:
            if not slot.busy:
                self.move(slot)

    def took(self, slot: Slot, chain: Chain, prompt: str, tokens: int) -> None:
        """The engine chose the slot for a request that has ended there."""
        if shared(slot.chain, chain) < len(slot.chain) - 1 or not chain:
            self.move(slot)
        self.hosted = [each for each in self.hosted if shared(each.chain, chain) < len(each.chain) - 1]
        sure = len(self.slots) == 1
        if chain:
            slot.hold(chain, prompt, tokens, unsaved=tokens, sure=sure)
        else:
            slot.forget(sure=sure)

    # Looking

    async def see_unplaced(self, server: SlotServer) -> None:
        """Before the gateway chooses a slot: finds the slots that the engine chose for other requests, also those of
        other programs."""
        if self._unplaced or not self._alone:
            await self._poll_until(server, lambda: not self._unseen)

    async def see_placed(self, server: SlotServer) -> None:
        """Before the engine chooses a slot: waits until it works in the slots that the gateway chose."""
        if any(slot.busy and not slot.seen for slot in self.slots):
            await self._poll_until(server, lambda: not any(slot.busy and not slot.seen for slot in self.slots))

    async def _poll_until(self, server: SlotServer, seen: Callable[[], bool]) -> None:
        """Polls at least once; gives up after POLL_SECONDS."""
        try:
            async with asyncio.timeout(POLL_SECONDS):
                while await self._poll(server):
                    if seen():
                        return
                    await asyncio.sleep(POLL_INTERVAL)
        except TROUBLE as error:
            log.debug("an engine's slots can't be read: %s", error)

    async def _poll(self, server: SlotServer) -> bool:
        """Notes in which slots the engine works; False if it doesn't say."""
        found = await server.held()
        if found is None:
            return False
        idle = {number for number, _ in found}
        for slot in self.slots:
            works = slot.number not in idle
            slot.seen = bool(slot.busy) and (slot.seen or works)
            slot.strange = works and not slot.busy
            if slot.strange and self.owners.several:
                slot.disown()
        if sum(slot.strange for slot in self.slots) >= self._unplaced:
            self._unseen = 0
        return True

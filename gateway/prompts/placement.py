"""Finds slots for requests: saves what a slot would lose, and restores what a file has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from gateway.prompts.blocks import Chain
from gateway.prompts.identity import EngineIdentity
from gateway.prompts.index import Match
from gateway.prompts.protocols import RESTORE_SECONDS, TROUBLE, SlotServer
from gateway.prompts.saved import SavedPrompts
from gateway.prompts.saver import SlotSaver
from gateway.prompts.slots import Slot, SlotChoice, choose, least_lost, spare, spare_of, tokens_of
from gateway.prompts.speed import ReadingSpeed
from gateway.prompts.table import SlotTable
from gateway.prompts.turn import Turn

Complete = Callable[[Turn, Mapping[str, Any], float, float], Mapping[str, Any]]


class Placement:
    """For one engine process. complete: see `Turn.answered`. reads: for how many seconds the engine will read."""

    def __init__(
        self,
        saved: SavedPrompts,
        identity: EngineIdentity,
        table: SlotTable,
        saver: SlotSaver,
        speed: ReadingSpeed,
        complete: Complete,
    ) -> None:
        self._saved = saved
        self._identity = identity
        self._table = table
        self._saver = saver
        self._speed = speed
        self._complete = complete

    def turn(self, server: SlotServer, slot: Slot | None, prompt: str, chain: Chain, owner: str) -> Turn:
        """The request takes this slot; None leaves the choice to the engine."""
        return Turn(self._table, self._complete, server, slot, prompt, chain, owner)

    async def long(self, server: SlotServer, prompt: str, begins: Chain, owner: str, reads: float) -> Turn:
        """A place for a prompt that may be saved. Raises one of TROUBLE."""
        async with self._table.free_slot(reads):
            return await self._long(server, prompt, begins, owner)

    async def short(
        self, server: SlotServer, short: Chain, owner: str, reads: float, *, private: bool, apart: bool
    ) -> Turn | None:
        """A place for a request that isn't saved itself, and must not overwrite a prompt that may be saved. short: see
        `Slot`. private: it may not even share a slot's last prompt. apart: several owners use the engine."""
        async with self._table.free_slot(reads):
            if apart:
                return await self._spare_of(server, short, owner)
            return await self._spare(server, short, private=private, owner=owner)

    async def take(self, server: SlotServer, begun: Turn | None, owner: str) -> Turn:
        """A slot for a flex answer. begun: its turn until it was put aside; None if it begins.

        Saves the slot's contents first. The turn has no slot if all stay busy for too long.
        """
        table = self._table
        async with table.free_slot(0.0):
            await table.see_unplaced(server)
            idle = [slot for slot in table.slots if slot.idle]
            if not idle:
                await table.see_placed(server)
        prompt, begins = (begun.prompt, begun.chain) if begun is not None else ("", ())
        slot = least_lost(idle, table.slots, owner if table.owners.several else None) if idle else None
        turn = self.turn(server, slot, prompt, begins, owner)
        if begun is not None:
            turn.since = begun.since
        try:
            if slot is not None and slot.chain:
                if slot.unsaved:
                    await self._saver.save(server, slot)
                slot.forget()
            turn.takes_slot()
        except BaseException:
            turn.leave()
            raise
        return turn

    async def _spare_of(self, server: SlotServer, short: Chain, owner: str) -> Turn:
        """Like `_spare`, for an engine that several owners use."""
        await self._table.see_unplaced(server)
        choice = spare_of(self._table.slots, short, owner)
        if choice.slot is None:
            await self._table.see_placed(server)
        turn = self.turn(server, choice.slot, "", (), owner)
        if choice.slot is None:
            return turn
        try:
            if choice.rescue:
                await self._saver.save(server, choice.slot)
            turn.takes_slot(short)
        except BaseException:
            turn.leave()
            raise
        return turn

    async def _spare(self, server: SlotServer, short: Chain, *, private: bool, owner: str) -> Turn | None:
        """If nothing can be lost, the engine chooses: it also finds prefixes in its cache in memory."""
        if self._identity.known and self._identity.key is None:
            return None
        slot = None
        if self._table.at_stake(self._saved.settings.min_tokens):
            await self._table.see_unplaced(server)
            slot = spare(self._table.slots, short)
        if slot is None:
            await self._table.see_placed(server)
        else:
            slot.begins_short(short)
        if slot is None and private:
            # It may get any slot, so don't rely on any of them.
            self._table.disturb()
        return self.turn(server, slot, "", (), owner)

    async def _long(self, server: SlotServer, prompt: str, begins: Chain, owner: str) -> Turn:
        key, match, table, apart = self._identity.key, None, self._table, self._table.owners.several
        if key is not None:
            await self._saved.kept(key)
            match = self._saved.best(key, begins)
        choice = SlotChoice()
        least = self._saved.settings.min_tokens
        if tokens_of(len(begins)) >= least or match is not None or apart or table.at_stake(least):
            await table.see_unplaced(server)
            hosted, whose = ((), owner) if apart else (table.hosted, None)
            choice = choose(table.slots, hosted, begins, match, self._speed.worth(begins), whose)
        if choice.slot is None:
            await table.see_placed(server)
        turn = self.turn(server, choice.slot, prompt, begins, owner)
        try:
            if choice.slot is not None:
                await self._prepare(turn, choice.slot, choice, match)
                turn.takes_slot()
                choice.slot.hold(begins, prompt, None, unsaved=choice.slot.unsaved, sure=True)
        except BaseException:
            turn.leave()
            if choice.slot is not None:
                choice.slot.disown() if turn.apart else choice.slot.forget()
            raise
        return turn

    async def _prepare(self, turn: Turn, slot: Slot, choice: SlotChoice, match: Match | None) -> None:
        """Saves the slot's contents, then fills it from a file."""
        if choice.rescue:
            await self._saver.save(turn.server, slot)
        if choice.restore is None or match is None:
            return
        file = await self._saved.file(choice.restore)
        if file is None:
            return
        slot.forget()
        began = time.monotonic()
        try:
            async with asyncio.timeout(RESTORE_SECONDS):
                tokens = await turn.server.restore(slot.number, file)
        except TimeoutError:
            raise  # the engine reads a long prompt of another request; the file is good
        except TROUBLE:
            # Never retry a file that an engine couldn't read: it may have crashed the engine.
            await self._saved.drop(choice.restore)
            raise
        if tokens != choice.restore.tokens:
            await self._saved.drop(choice.restore)
            return
        self._saved.restores += 1
        self._speed.copied(tokens, time.monotonic() - began)
        turn.got(choice.restore, match.blocks)
        slot.chain = choice.restore.chain

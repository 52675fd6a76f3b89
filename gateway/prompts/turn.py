"""A request's place in an engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from gateway.prompts.blocks import Chain
from gateway.prompts.index import Saved
from gateway.prompts.protocols import SlotServer
from gateway.prompts.slots import MANY, Slot
from gateway.prompts.table import SlotTable


class Turn:
    """A request's place in an engine. Call `leave` once its answer has ended, then `answered`, whether it is complete
    or not.

    slot: its number for the engine; None leaves the choice to it. taken: what the gateway knows of that slot. restored:
    the file that it got. shared: the blocks that its prompt and the file have in common. apart: several owners use the
    engine, so the request must go to this slot. fresh: what the slot holds may be another owner's, so the engine must
    not reuse any of it. asked: the request's tools and messages, if the doctor should see them.
    """

    __slots__ = (
        *("_before", "_complete", "_left", "_table", "apart", "asked", "chain", "fresh", "owner"),
        *("prompt", "restored", "server", "shared", "since", "taken"),
    )

    def __init__(
        self,
        table: SlotTable,
        complete: Callable[[Turn, Mapping[str, Any], float, float], Mapping[str, Any]],
        server: SlotServer,
        slot: Slot | None,
        prompt: str,
        chain: Chain,
        owner: str,
    ) -> None:
        self._table = table
        self._complete = complete
        self.taken = slot
        self.owner = owner
        self.apart = table.owners.several
        self.fresh = self.apart and (slot is None or slot.owner not in (None, owner) or table.unsettled)
        self._before = (slot.chain, slot.tokens, slot.unsaved, slot.prompt) if slot is not None else None
        self.server = server
        self.prompt = prompt
        self.chain = chain
        self.restored: Saved | None = None
        self.shared = 0
        self.asked: tuple[bytes, bytes] | None = None
        self._left = False
        self.since = time.monotonic()
        table.enter(slot)

    @property
    def slot(self) -> int | None:
        return self.taken.number if self.taken is not None else None

    def holds(self, tokens: int, *, saved: bool = False) -> None:
        """Its slot holds the prompt and what was written so far. saved: in a file."""
        if (slot := self.taken) is not None:
            slot.hold(self.chain, self.prompt, tokens, unsaved=0 if saved else tokens, sure=True)
            self.owns()

    def got(self, saved: Saved, shared: int) -> None:
        """Its slot holds a file's contents. shared: see the attribute."""
        self.owns()
        self.restored, self.shared = saved, shared

    def takes_slot(self, short: Chain = ()) -> None:
        """Its slot is about to lose what it holds, unless that is its owner's. short: of a request that isn't saved."""
        slot = self.taken
        if slot is not None and self.apart:
            if self.fresh or not self.chain:
                slot.forget()
            slot.own(MANY if self.fresh else self.owner, short)

    def owns(self) -> None:
        """Its slot holds nothing but its owner's prompt."""
        if self.apart and self.taken is not None:
            self.taken.own(self.owner)
            self.fresh = self._table.unsettled

    def leave(self) -> None:
        """The engine has finished with the request. Idempotent."""
        if not self._left:
            self._left = True
            self._table.left(self.taken)

    def __enter__(self) -> None:
        """Enter this around sending the request: if that raises, the engine didn't accept it; its slot is unchanged."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.refused()
        else:
            self._table.began(self.taken)

    def refused(self) -> None:
        """The engine didn't accept the request."""
        self.leave()
        slot = self.taken
        if slot is not None and slot.owner == MANY:
            slot.disown()  # the engine may have begun
        elif slot is not None and self._before is not None and self.restored is None:
            slot.chain, slot.tokens, slot.unsaved, slot.prompt = self._before

    def answered(self, usage: Mapping[str, Any], began: float, first: float) -> Mapping[str, Any]:
        """The answer has ended, complete or not; returns its usage for the request log.

        began, first: of the run, by time.monotonic.
        Adds `restored_tokens` and `seconds_saved` if a file helped, and `prefix`: where the request differs from the
        turn before, if it doesn't just go on.
        """
        return self._complete(self, usage, began, first)

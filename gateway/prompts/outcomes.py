"""What the counts of complete answers tell: how fast an engine reads, and whether files help it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.prompts.background import Background
from gateway.prompts.doctor import Doctor
from gateway.prompts.identity import EngineIdentity
from gateway.prompts.index import Saved
from gateway.prompts.saved import SavedPrompts
from gateway.prompts.saver import SlotSaver
from gateway.prompts.speed import ReadingSpeed, counts
from gateway.prompts.table import SlotTable
from gateway.prompts.turn import Turn

IN_VAIN = 0.5
"""The share of a restored prefix that an engine must report as cached."""
MAX_IN_VAIN = 2
"""After this many restores in a row without effect, this engine can't restore this model's prompts."""


class Outcomes:
    """For one engine process."""

    def __init__(
        self,
        saved: SavedPrompts,
        model: str,
        identity: EngineIdentity,
        table: SlotTable,
        saver: SlotSaver,
        speed: ReadingSpeed,
        background: Background,
    ) -> None:
        self._saved = saved
        self._model = model
        self._identity = identity
        self._table = table
        self._saver = saver
        self._speed = speed
        self._background = background
        self._doctor = Doctor()
        self._in_vain = 0

    def complete(self, turn: Turn, usage: Mapping[str, Any], began: float, first: float) -> Mapping[str, Any]:
        """See `Turn.answered`."""
        told = self._counted(turn, usage, began, first)
        found = self._doctor.compare(*turn.asked, turn.owner) if turn.asked is not None else []
        return {**told, "prefix": [str(each) for each in found]} if found else told

    def _counted(self, turn: Turn, usage: Mapping[str, Any], began: float, first: float) -> Mapping[str, Any]:
        found, slot = counts(usage), turn.taken
        if found is not None or first:
            turn.owns()  # the engine has written something, so it has read the prompt
        if found is None:
            return usage
        prompt, cached, completion = found
        if slot is None:
            if not turn.apart:
                self._find_slot(turn, prompt + completion)
            return usage
        if not turn.chain:
            return usage
        slot.answered(found)
        self._speed.saw(found, max(began, turn.since), first)
        if self._saved.settings.save == "each_turn":
            self._background.start(self._saver.save_idle(turn.server, slot))
        if turn.restored is None or not self._helps(turn.restored, turn.shared / len(turn.chain), prompt, cached):
            return usage
        helped = min(cached, turn.restored.tokens)
        seconds = round(helped * self._speed.measured, 3)
        return {**usage, "restored_tokens": helped, "seconds_saved": seconds}

    def _helps(self, restored: Saved, part: float, prompt: int, cached: int) -> bool:
        """Whether the engine found in the file what it should have. part: of the prompt, that the file has too.

        Drops a file that didn't help, and all of them after several.
        """
        if cached >= min(int(prompt * part), restored.tokens) * IN_VAIN:
            self._in_vain = 0
            return True
        self._in_vain = self._in_vain + 1 if restored.sure else 0
        if self._in_vain >= MAX_IN_VAIN and self._identity.key is not None:
            self._background.start(self._saved.unsupported(self._identity.key, self._model))
            self._identity.give_up()
        else:
            self._background.start(self._saved.drop(restored))
        return False

    def _find_slot(self, turn: Turn, tokens: int) -> None:
        """Finds out which slot the engine chose for this request."""
        table = self._table
        if not turn.chain and not any(slot.chain for slot in table.slots):
            return
        if len(table.slots) == 1:
            table.took(table.slots[0], turn.chain, turn.prompt, tokens)
        else:
            self._background.start(table.find(turn.server, turn.chain, turn.prompt, tokens))

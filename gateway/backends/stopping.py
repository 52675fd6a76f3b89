"""Ends an answer at a stop sequence, for engines that do it themselves but never say which one it was."""

from __future__ import annotations

from collections.abc import Sequence


class StopAt:
    """Cuts a text that arrives piece by piece before the first of the sequences in it.

    stopped_by: the sequence, once it has come.
    """

    def __init__(self, sequences: Sequence[str]) -> None:
        self.stopped_by: str | None = None
        self._sequences = sequences
        self._held = ""
        """The end of the text, with which a sequence may begin."""

    def feed(self, piece: str) -> str:
        """More of the text; returns what no sequence can touch any more."""
        if self.stopped_by is not None:
            return ""
        text = self._held + piece
        found = [(at, stop) for stop in self._sequences if (at := text.find(stop)) >= 0]
        if found:
            at, self.stopped_by = min(found, key=lambda one: one[0])
            self._held = ""
            return text[:at]
        held = max((_begun(text, stop) for stop in self._sequences), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """The text has ended: what was held."""
        rest, self._held = self._held, ""
        return rest


def _begun(text: str, stop: str) -> int:
    """How many characters at the end of the text may begin the sequence."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)

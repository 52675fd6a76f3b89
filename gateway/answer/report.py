"""The `ctxgate` field of an answer: what was changed in the request and in the answer, and what was decided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from gateway.answer.choice import AnswerChoice
from gateway.answer.contents import mended
from gateway.wire.engine import Decided, Fixup

ADAPTED = {
    "system_messages": "system or developer messages joined with the first one, or given to the user",
    "joined_messages": "messages joined with the one before, of the same role",
    "moved_results": "results moved behind their calls",
    "added_messages": "messages added where the chat template asks for one",
    "split_messages": "messages split, since they had several calls",
    "texts_apart": "texts beside calls sent in messages of their own, since the chat template drops them there",
    "calls_in_words": "calls and results written as text",
    "images_left_out": "images left out, since the model reads text",
    "images_described": "images replaced by another model's descriptions",
}
"""Changes to a conversation that the model, or its chat template, refuses as it is: counted in `healed`, told as
warnings."""


class Report(Struct, eq=False):
    """healed: the repairs to the request's history, counted by kind. decided: whether the answer calls a tool was
    decided before it was written, and how. fallback: the model that answers in another one's place."""

    healed: Mapping[str, int]
    decided: Decided | None
    fallback: str | None
    fixup: Fixup | None

    def heal(self, kind: str) -> None:
        """Counts one more repair."""
        self.healed = {**self.healed, kind: self.healed.get(kind, 0) + 1}

    def warnings(self, choices: Iterable[AnswerChoice]) -> list[dict[str, str]]:
        """Problems in the answer and changes to the request's messages, each with a `code` and a `text`."""
        changes = [
            {"code": kind, "text": f"{ADAPTED[kind]}: {number}"}
            for kind, number in self.healed.items()
            if kind in ADAPTED
        ]
        engine = self.fixup.warnings if self.fixup is not None else ()
        return [*changes, *engine, *(warning for choice in choices for warning in choice.warnings())]

    def field(self, *choices: AnswerChoice) -> dict[str, Any]:
        """{} if there is nothing to tell."""
        report: dict[str, Any] = {"healed": self.healed} if self.healed else {}
        if warnings := self.warnings(choices):
            report["warnings"] = warnings
        if (how := mended(choices)) != "none":
            report["mended"] = how
        if self.decided is not None:
            report["call_probability"] = round(self.decided.probability, 4)
            report["call_threshold"] = self.decided.threshold
        return report

    def last_field(self, choice: AnswerChoice) -> dict[str, Any]:
        """Of the last chunk of a streamed choice."""
        report = self.field(choice)
        if report or choice.normalizer.called:
            # With calls read from text, also report that none needed repair.
            report = {"mended": "none", **report}
        # Progress comments may have started the stream before the fallback was known, so a header isn't enough.
        return report if self.fallback is None else {**report, "fallback": self.fallback}

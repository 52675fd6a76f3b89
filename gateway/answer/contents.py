"""What an answer has brought so far: its choices, and the engine's counts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from gateway.answer.choice import AnswerChoice
from gateway.answer.reading import Reading
from gateway.errors import ProviderInvalidResponse
from gateway.wire.chat import CALLING
from gateway.wire.usage import whole_number

MAX_CHOICES = 256
"""Twice as many as OpenAI's APIs give."""

NOTHING: Mapping[str, int] = {}
_UNPRINTABLE = re.compile("[^!-~]")  # in one word of a comment
_LONGEST_NAME = 64
HEAVY = 8192
"""Bytes of what an engine sent: finding calls in a model's text takes up to 15 microseconds a character."""


class Contents(Struct, eq=False):
    """chunks: the number of streamed payloads so far; with most engines each is a token. usage: the engine's counts as
    OpenAI's `usage` object; empty until they arrive. only: the choice, as long as it is the only one. id,
    finish_reason: the answer's, once it has ended. heavy: so much text was held back that what ends it
    may take long to read."""

    reading: Reading
    choices: dict[int, AnswerChoice] = {}
    only: AnswerChoice | None = None
    chunks: int = 0
    usage: Mapping[str, Any] = NOTHING
    id: str | None = None
    finish_reason: str | None = None
    heavy: bool = False

    def choice(self, index: int) -> AnswerChoice:
        """The choice of that number, a new one if it is the first time. Raises ProviderInvalidResponse."""
        choice = self.choices.get(index)
        if choice is None:
            if len(self.choices) == MAX_CHOICES:
                raise ProviderInvalidResponse(f"the engine's answer has more than {MAX_CHOICES} choices")
            choice = self.choices[index] = AnswerChoice(index, self.reading)
            self.only = choice if len(self.choices) == 1 else None
        return choice

    def missing(self, index: int) -> list[AnswerChoice]:
        """The choices below `index` that nothing has come of, new ones: clients expect choices to start in order."""
        return [self.choice(at) for at in range(index) if at not in self.choices]

    def weigh(self, choice: AnswerChoice) -> None:
        """Notes whether a choice's text has become heavy."""
        if choice.pending > HEAVY:
            self.heavy = True

    def end(self, id: str | None, finish_reason: str) -> None:
        self.id, self.finish_reason = id, finish_reason

    def count(self, usage: Mapping[str, Any]) -> None:
        self.usage = usage

    def count_timings(self, timings: Any) -> None:
        """llama.cpp's counts, which its last chunk has even without `include_usage`."""
        if self.usage or not isinstance(timings, dict):
            return
        prompt, cached, predicted = (whole_number(timings.get(key)) for key in ("prompt_n", "cache_n", "predicted_n"))
        self.usage = {
            "prompt_tokens": prompt + cached,
            "completion_tokens": predicted,
            "total_tokens": prompt + cached + predicted,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    @property
    def unread(self) -> bool:
        """Whether the answer, which has ended, calls no tool and looks like a call that nobody read."""
        if self.reading.request.tools is None or any(choice.called for choice in self.choices.values()):
            return False
        names = self.reading.tools.names
        return any(choice.unread(names) for choice in self.choices.values())

    def describe_held(self) -> str:
        """The progress of the call that is held back; "" if none is. Names only tools that the request declares."""
        for choice in [*self.choices.values()]:  # a whole answer may be read in a thread meanwhile
            if (held := choice.held) is not None:
                name, size = held
                named = f" {_UNPRINTABLE.sub('?', name)[:_LONGEST_NAME]}" if name in self.reading.tools else ""
                return f"{CALLING}{named} characters={size}"
        return ""


def mended(choices: Iterable[AnswerChoice]) -> str:
    """One of `gateway.wire.chat.MENDED`."""
    read = [choice.normalizer for choice in choices]
    found = [kind for kind in ("schema", "lexical") if any(each.mended == kind for each in read)][:1]
    return ", ".join(["unmarked"] * any(each.unmarked for each in read) + found) or "none"

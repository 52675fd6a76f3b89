"""How fast an engine reads prompts, from the counts of its answers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal

from gateway.prompts.blocks import Chain
from gateway.prompts.protocols import PromptReading
from gateway.prompts.slots import tokens_of, worth

FAST_SECONDS_PER_TOKEN = 0.0002
"""Assumed for an engine until its reading speed is known."""
COPY_SECONDS_PER_TOKEN = 0.0001
"""For saving and restoring; assumed until the engine has restored a file."""
SLOW_SECONDS = 0.1
"""An engine that takes this long to read one block is slow."""
RATE_TOKENS = 64
"""How many tokens an engine must read for a measurement of its speed."""
WRITING = 8
"""Writing a token takes at least as long as reading this many: an estimate for whole answers, without a first token."""


class ReadingSpeed:
    """Seconds that one engine takes to read a token. measured: 0 if it has read too few. assumed: until then.

    copying: how long it takes to save and restore one.
    """

    def __init__(self) -> None:
        self.copying = COPY_SECONDS_PER_TOKEN
        self.measured = 0.0
        self.assumed = FAST_SECONDS_PER_TOKEN

    @property
    def seconds_per_token(self) -> float:
        """As far as anybody knows."""
        return self.measured or self.assumed

    def saw(self, found: tuple[int, int, int], since: float, first: float) -> None:
        """An answer is complete; see `reading_seconds`."""
        if reading := reading_seconds(found, since, first):
            self.measured = reading / (found[0] - found[1])

    def assume(self, seconds_per_token: float) -> None:
        """Others of the model's engines have read like this."""
        self.assumed = seconds_per_token

    def read(self, reading: PromptReading) -> None:
        """The engine has read a prompt by itself."""
        if reading.read >= RATE_TOKENS and reading.seconds > 0:
            self.measured = reading.seconds / reading.read

    def copied(self, tokens: int, seconds: float) -> None:
        """The engine has restored so many. Saving takes about as long.

        One slow restore proves little: it may have waited for a step of another prompt.
        """
        self.copying = min(2 * seconds / max(1, tokens), 2 * self.copying)

    def seconds(self, blocks: int) -> float:
        """How long reading so many blocks of a prompt takes."""
        return tokens_of(blocks) * self.seconds_per_token

    def worth(self, begins: Chain) -> int:
        """How many blocks of a prompt are worth a file."""
        return worth(len(begins), slow=self.seconds(1) >= SLOW_SECONDS)


class Waits:
    """What a request waits for: a free slot, or the reading of a prefix that it shares. seconds: for which the engine
    reads, from `began` on by time.monotonic; None: it hasn't begun."""

    def __init__(
        self, what: Literal["slot", "prefix"], seconds: float, speed: ReadingSpeed, began: float | None = None
    ) -> None:
        self._what = what
        self._seconds = seconds
        self._tokens = round(seconds / speed.seconds_per_token)
        self._began = began

    def describe(self) -> str:
        """For `Serving.describe`."""
        gone = time.monotonic() - self._began if self._began is not None else 0.0
        return f"queued for={self._what} reads={self._tokens} left={max(0.0, self._seconds - gone):.0f}"


def counts(usage: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """Tokens of the prompt, of its cached part and of the answer; None if the engine did not count."""
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    counts = usage.get("prompt_tokens"), cached, usage.get("completion_tokens")
    prompt, cached, completion = (count if isinstance(count, int) else None for count in counts)
    return None if prompt is None or cached is None or completion is None else (prompt, cached, completion)


def reading_seconds(found: tuple[int, int, int], since: float, first: float) -> float:
    """How long an engine took to read a prompt; 0 if that can't be said. found: see `counts`. since, first: when it
    got the prompt, and when its first token came, by time.monotonic; 0 for a whole answer, which ends now."""
    prompt, cached, completion = found
    read = prompt - cached
    if read < RATE_TOKENS:
        return 0.0
    if first:
        return max(0.0, first - since)
    written = WRITING * completion
    return max(0.0, time.monotonic() - since) * read / (read + written) if written <= read else 0.0

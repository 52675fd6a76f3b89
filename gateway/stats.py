"""What was answered, as plain numbers: an answer leaves itself in a list, and is counted when somebody asks."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from gateway.errors import GatewayError, InternalError
from gateway.normalize import Answer

BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of a histogram's buckets, in seconds; one more bucket takes the rest."""

UNCOUNTED = 128
"""Answers that are counted together: one by one each costs several times as much."""

OK, LEFT = "ok", "client_left"
Outcome = str
"""`ok`, `client_left` (closed before its end) or the category of an error."""


def outcome_of(error: BaseException) -> Outcome:
    """What it means for an answer that this was raised."""
    if isinstance(error, GatewayError):
        return error.category
    return InternalError.category if isinstance(error, Exception) else LEFT


class Ended(Struct, gc=False, frozen=True):
    """An answer that is over. Moments are `time.monotonic`'s.

    began: when the request came. first: when the first payload of a stream did, 0 where none came. usage: the tokens
    that the engine told. chunks: payloads that it streamed. repairs: where anything was mended or could not be read.
    """

    model: str
    stream: bool
    outcome: Outcome
    began: float
    end: float
    first: float = 0.0
    usage: Mapping[str, Any] = {}
    chunks: int = 0
    repairs: Repairs | None = None


class Repairs(Struct, gc=False, frozen=True):
    """What the normaliser had to put right: see `gateway.normalize.Answer`. warnings: their codes."""

    mended: str
    healed: Mapping[str, int]
    warnings: list[str]


def repairs(answer: Answer) -> Repairs | None:
    mended, healed, warnings = answer.mended, answer.healed, [warning["code"] for warning in answer.warnings()]
    return Repairs(mended, healed, warnings) if mended != "none" or healed or warnings else None


class Histogram:
    """How often a duration, in seconds, fell in each bucket of BOUNDS."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def observe(self, durations: Iterable[float]) -> None:
        ordered = sorted(durations)
        self.sum += sum(ordered)
        below = 0
        for bucket, bound in enumerate(BOUNDS):
            upto = bisect_right(ordered, bound)
            self.counts[bucket] += upto - below
            below = upto
        self.counts[-1] += len(ordered) - below


class Stats:
    """The answers for one model since the gateway started; a change of its settings goes on counting.

    outcomes: ended answers by their outcome. duration: from the request to the end of an answer that ended well.
    first: until the first payload of a stream. chunks: payloads that engines streamed, about a token each. Tokens are
    those that engines told: see `gateway.normalize.Answer.usage`. mended, healed, warnings: answers, past messages and
    pieces of text that had to be put right, by kind.
    """

    def __init__(self) -> None:
        self.outcomes: Counter[Outcome] = Counter()
        self.duration = Histogram()
        self.first = Histogram()
        self.chunks = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.mended: Counter[str] = Counter()
        self.healed: Counter[str] = Counter()
        self.warnings: Counter[str] = Counter()
        self._uncounted: list[Ended] = []

    def ended(self, run: Ended) -> None:
        uncounted = self._uncounted
        uncounted.append(run)
        if len(uncounted) >= UNCOUNTED:
            self.count()

    def count(self) -> Stats:
        """Brings the numbers up to date."""
        runs, self._uncounted = self._uncounted, []
        if not runs:
            return self
        self.outcomes.update([run.outcome for run in runs])
        self.duration.observe([run.end - run.began for run in runs if run.outcome == OK])
        self.first.observe([run.first - run.began for run in runs if run.first])
        self.chunks += sum([run.chunks for run in runs])
        for prompt, completion, cached in [tokens(run.usage) for run in runs if run.usage]:
            self.prompt_tokens += prompt
            self.completion_tokens += completion
            self.cached_tokens += cached
        for repairs in [run.repairs for run in runs if run.repairs is not None]:
            self.healed.update(repairs.healed)
            self.warnings.update(repairs.warnings)
            if repairs.mended != "none":
                self.mended[repairs.mended] += 1
        return self


def tokens(usage: Mapping[str, Any]) -> tuple[int, int, int]:
    """Of the prompt, of the answer, and those of the prompt that were cached. What isn't a number counts nothing."""
    cached = 0
    if isinstance(details := usage.get("prompt_tokens_details"), dict):
        cached = details.get("cached_tokens")
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return (
        prompt if isinstance(prompt, int) else 0,
        completion if isinstance(completion, int) else 0,
        cached if isinstance(cached, int) else 0,
    )

"""What was answered: the request log and the counts of each model.

An answer leaves a tuple behind. Whoever wants to know something settles them, many together: that takes a fraction of
what it would take one by one, while requests wait.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter, sub
from time import monotonic, time
from typing import Any, NamedTuple

from msgspec import Struct

from gateway.answer.capture import Recording
from gateway.answer.normalize import Answer
from gateway.errors import GatewayError, InternalError
from gateway.wire.chat import ApiName

BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of a histogram's buckets, in seconds; one more bucket takes the rest."""

UNSETTLED = 512
"""Answers that are settled at the latest."""

MAX_RECORDED = 32 * 1024 * 1024
"""Bytes of all recordings together: the oldest are forgotten first."""

OK, LEFT = "ok", "client_left"
Outcome = str
"""`ok`, `client_left` (closed before its end) or the category of an error."""


def outcome_of(error: BaseException) -> Outcome:
    """What it means for an answer that this was raised."""
    if isinstance(error, GatewayError):
        return error.category
    return InternalError.category if isinstance(error, Exception) else LEFT


class Repairs(Struct, gc=False, frozen=True):
    """What the normaliser had to put right: see `gateway.answer.normalize.Answer`. warnings: their codes."""

    mended: str = "none"
    healed: Mapping[str, int] = {}
    warnings: list[str] = []


def repairs(answer: Answer) -> Repairs | None:
    mended, healed, warnings = answer.mended, answer.healed, [warning["code"] for warning in answer.warnings()]
    return Repairs(mended, healed, warnings) if mended != "none" or healed or warnings else None


class Ended(NamedTuple):
    """An answer that is over. Moments are `time.monotonic`'s. The hot path makes it as a plain tuple.

    began: when the request came. first: when the first payload of a stream did, 0 where none came. usage: the tokens
    that the engine told. chunks: payloads that it streamed. repairs: None where nothing was mended or unreadable.
    """

    model: str
    stream: bool
    outcome: Outcome
    began: float
    end: float
    first: float
    usage: Mapping[str, Any]
    chunks: int
    repairs: Repairs | None
    recording: Recording | None
    face: ApiName


Row = tuple[
    str, bool, Outcome, float, float, float, Mapping[str, Any], int, Repairs | None, Recording | None, ApiName
]  # fmt: skip
"""An `Ended` before anybody looked at it."""


class Entry(Struct):
    """One answer. at: the moment of its end, in seconds since 1970. Durations are seconds.

    first_seconds: None where no payload of a stream came. warnings: codes of `normalizers.Warn`. recorded: whether its
    bytes are kept.
    """

    id: int
    at: float
    model: str
    face: ApiName
    stream: bool
    outcome: Outcome
    seconds: float
    first_seconds: float | None
    prompt_tokens: int
    completion_tokens: int
    mended: str
    healed: Mapping[str, int]
    warnings: list[str]
    recorded: bool


class Histogram:
    """How often a duration, in seconds, fell in each bucket of BOUNDS."""

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

    requests: ended answers by the API they were asked by, and their outcome. duration: from the request to the end of
    its answer. first: until the first payload of a stream. chunks: payloads that engines streamed, about a token each.
    generated: those, and the tokens of whole answers. Tokens are those that engines told. mended, healed, warnings:
    answers, past messages and pieces of text that had to be put right, by kind.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[ApiName, Outcome]] = Counter()
        self.duration = Histogram()
        self.first = Histogram()
        self.chunks = 0
        self.generated = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.mended: Counter[str] = Counter()
        self.healed: Counter[str] = Counter()
        self.warnings: Counter[str] = Counter()

    def add(self, rows: list[Row]) -> None:
        # Column by column, in C.
        _, streams, outcomes, began, ends, firsts, usages, chunks, mendings, _, faces = zip(*rows, strict=True)
        self.requests.update(zip(faces, outcomes, strict=True))
        self.duration.observe(map(sub, ends, began))
        if any(firsts):
            self.first.observe([first - begin for first, begin in zip(firsts, began, strict=True) if first])
        self.chunks += sum(chunks)
        told = [*filter(None, usages)]
        whole = [usage for usage, stream in zip(usages, streams, strict=True) if usage and not stream]
        self.generated += sum(chunks) + _sum(whole, "completion_tokens")
        self.prompt_tokens += _sum(told, "prompt_tokens")
        self.completion_tokens += _sum(told, "completion_tokens")
        details = [usage["prompt_tokens_details"] for usage in told if "prompt_tokens_details" in usage]
        self.cached_tokens += _sum(details, "cached_tokens")
        for repair in filter(None, mendings):
            self.healed.update(repair.healed)
            self.warnings.update(repair.warnings)
            if repair.mended != "none":
                self.mended[repair.mended] += 1

    @property
    def outcomes(self) -> Counter[Outcome]:
        """Ended answers by their outcome."""
        found: Counter[Outcome] = Counter()
        for (_, outcome), count in self.requests.items():
            found[outcome] += count
        return found


class RequestLog:
    """Every answer is counted, the last `size` are kept. bodies: whether with their bytes."""

    def __init__(self, size: int = 0, *, bodies: bool = False) -> None:
        self.bodies = bodies
        self.rows: list[Row] = []
        """Not settled yet; who adds one settles once there are UNSETTLED."""
        self._stats: dict[str, Stats] = {}
        self._kept: deque[Row] = deque(maxlen=size)
        self._total = 0

    def settle(self) -> None:
        rows, self.rows = self.rows, []
        self._total += len(rows)
        self._kept.extend(rows)
        for model, group in groupby(sorted(rows, key=_MODEL), key=_MODEL):
            self._stats.setdefault(model, Stats()).add([*group])

    def stats(self, model: str) -> Stats:
        """Of a model that config.yaml has, or had."""
        self.settle()
        return self._stats.get(model) or Stats()

    def models(self) -> list[str]:
        """Those that were asked."""
        self.settle()
        return sorted(self._stats)

    def entries(self) -> Iterator[Entry]:
        """The newest first."""
        for entry, _ in self._entries():
            yield entry

    def find(self, key: str) -> tuple[Entry, Recording | None] | None:
        """By its number or, where bodies are kept, by the id of the completion as the client saw it."""
        for entry, recording in self._entries():
            if key == str(entry.id) or (recording is not None and key == recording.completion_id):
                return entry, recording
        return None

    def record(self, answer: Answer) -> Recording | None:
        """The recording of an answer that ends, where there is one; the oldest make room for it."""
        recording: Recording | None = getattr(answer, "recording", None)
        if recording is not None:
            self.settle()
            room = MAX_RECORDED - recording.size
            for row in reversed(self._kept):
                if (old := Ended(*row).recording) is not None:
                    room -= old.size
                    if room < 0:
                        old.forget()
        return recording

    def configure(self, size: int, *, bodies: bool) -> None:
        """From now on; of what is kept, as much as there is room for stays."""
        self.settle()
        self.bodies = bodies
        self._kept = deque(self._kept, maxlen=size)

    def _entries(self) -> Iterator[tuple[Entry, Recording | None]]:
        self.settle()
        clock = time() - monotonic()
        for behind, row in enumerate(reversed([*self._kept])):
            ended = Ended(*row)
            recording = ended.recording if ended.recording is not None and ended.recording.raw else None
            yield _entry(self._total - behind, ended, clock, recorded=recording is not None), recording


_MODEL = itemgetter(0)


def _entry(number: int, ended: Ended, clock: float, *, recorded: bool) -> Entry:
    mending = ended.repairs or Repairs()
    return Entry(
        id=number,
        at=clock + ended.end,
        model=ended.model,
        face=ended.face,
        stream=ended.stream,
        outcome=ended.outcome,
        seconds=ended.end - ended.began,
        first_seconds=ended.first - ended.began if ended.first else None,
        prompt_tokens=_sum([ended.usage], "prompt_tokens"),
        completion_tokens=_sum([ended.usage], "completion_tokens"),
        mended=mending.mended,
        healed=mending.healed,
        warnings=mending.warnings,
        recorded=recorded,
    )


def _sum(usages: list[Mapping[str, Any]], key: str) -> int:
    """Engines' own numbers: what isn't one counts nothing."""
    try:
        total = sum(map(itemgetter(key), usages))
    except (KeyError, TypeError):
        values = [usage.get(key) for usage in usages if isinstance(usage, Mapping)]
        return sum(value for value in values if isinstance(value, int))
    return total if isinstance(total, int) else int(total)

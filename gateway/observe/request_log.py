"""The request log and the counters of each model.

Each answer appends a row; readers aggregate in batches (`settle`). That takes a fraction of the time that counting each
answer would take on the hot path.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import add, itemgetter, sub
from time import gmtime, monotonic, strftime, time
from typing import Any, NamedTuple
from weakref import ref

from msgspec import Struct
from msgspec.structs import astuple

from gateway.answer.capture import Recording, asked, model_in
from gateway.answer.normalize import Answer
from gateway.answer.unread import UNREAD
from gateway.errors import GatewayError, InternalError
from gateway.wire.chat import NOBODY, ApiName, Caller
from gateway.wire.engine import Decided
from gateway.wire.usage import MAX_TOKENS, count, tokens_of, units_of

BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of the histograms' buckets, in seconds. One more bucket counts the rest."""

UNSETTLED = 512
"""Rows at which the log must be settled."""

MAX_RECORDED = 32 * 1024 * 1024
"""Bytes of all recordings together. The oldest are dropped first."""

MAX_MESSAGE = 4096
"""Characters of an error's message that the log keeps: one may quote much of the request."""
MAX_NAME = 100
"""Characters of an unknown model's name that the log keeps."""

OK, LEFT = "ok", "client_left"
Outcome = str
"""`ok`, `client_left` (the client closed before the end) or an error's category."""


class Failure(str):
    """An error's category, as an `Outcome` that also has the client's error message."""

    message: str
    code: str
    status: int
    retryable: bool

    @classmethod
    def of(cls, error: GatewayError) -> Failure:
        made = cls(error.category)
        made.message, made.code, made.status = error.message[:MAX_MESSAGE], error.code, error.status
        made.retryable = error.transient
        return made


def outcome_of(error: BaseException) -> Outcome:
    """The outcome of an answer that raised this. Marks an error as logged."""
    if isinstance(error, GatewayError):
        error.logged = True
        return Failure.of(error)
    return InternalError.category if isinstance(error, Exception) else LEFT


def key_of(began: float) -> str:
    """The key of a request, from its arrival by time.monotonic; a request has a key before it has a number."""
    return f"{began:.6f}"


class RepairNotes(Struct, gc=False, frozen=True):
    """What the normaliser read and repaired: see `gateway.answer.normalize.Answer`. mended: one of
    `gateway.wire.chat.MENDED`. warnings: their codes. decided: whether it calls a tool was decided beforehand. called:
    the client got a call."""

    mended: str = "none"
    healed: Mapping[str, int] = {}
    warnings: list[str] = []
    decided: Decided | None = None
    called: bool = False


def repairs(answer: Answer, outcome: Outcome = OK) -> RepairNotes | None:
    mended, healed, warnings = answer.mended, answer.report.healed, [warning["code"] for warning in answer.warnings()]
    if outcome == OK and answer.contents.unread:
        warnings.append(UNREAD)
    called = any(choice.called for choice in answer.contents.choices.values())
    found = RepairNotes(mended, healed, warnings, answer.report.decided, called)
    return found if called or mended != "none" or healed or warnings or answer.report.decided else None


class Ended(NamedTuple):
    """A finished answer. Times are `time.monotonic`'s. The hot path builds it as a plain tuple.

    began: arrival of the request. first: arrival of the first streamed payload, 0 if there was none. usage: the
    engine's token counts. chunks: number of streamed payloads. repairs: None if no call was read or unreadable, and
    nothing was repaired.
    """

    model: str
    stream: bool
    outcome: Outcome
    began: float
    end: float
    first: float
    usage: Mapping[str, Any]
    chunks: int
    repairs: RepairNotes | None
    recording: Recording | None
    api: ApiName
    caller: Caller = NOBODY

    @property
    def kept(self) -> Recording | None:
        """The recording, unless it has made room for others."""
        return self.recording if self.recording is not None and self.recording.kept else None


Row = tuple[
    str, bool, Outcome, float, float, float, Mapping[str, Any], int,
    RepairNotes | None, Recording | None, ApiName, Caller,
]  # fmt: skip
"""An `Ended` as a plain tuple."""


class Columns(NamedTuple):
    """The fields of `Ended`, each of several answers."""

    models: tuple[str, ...]
    streams: tuple[bool, ...]
    outcomes: tuple[Outcome, ...]
    began: tuple[float, ...]
    ends: tuple[float, ...]
    firsts: tuple[float, ...]
    usages: tuple[Mapping[str, Any], ...]
    chunks: tuple[int, ...]
    repairs: tuple[RepairNotes | None, ...]
    recordings: tuple[Recording | None, ...]
    apis: tuple[ApiName, ...]
    callers: tuple[Caller, ...]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Columns:
        """rows: at least one."""
        return cls(*zip(*rows, strict=True))


class LogEntry(Struct):
    """One answer. at: its end, in seconds since 1970. Durations are in seconds.

    key: see `key_of`. error: the client's error message; None unless it failed. client: the client program, "" if
    unknown. first_seconds: None if nothing was streamed. cached_tokens: those of the prompt that the engine didn't need
    to read. restored_tokens: those of them that came from a saved prompt. seconds_saved: what reading them would have
    taken; 0 if nobody knows. prefix: where its prompt differs from the previous turn's, so that the engine had to read
    it again. mended: one of `gateway.wire.chat.MENDED`. warnings: codes of `normalizers.Warn`, and `unread_call` if the
    answer looks like a call that nobody read. call_probability, call_threshold: see `gateway.wire.engine.Decided`; None
    if the model decided by itself. called: the client got a call. units: see `gateway.wire.usage.UNITS`. recorded:
    whether the log holds its bytes.
    """

    id: int
    key: str
    at: float
    model: str
    api: ApiName
    client: str
    stream: bool
    outcome: Outcome
    error: Mapping[str, Any] | None
    seconds: float
    first_seconds: float | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    restored_tokens: int
    seconds_saved: float
    prefix: list[str]
    mended: str
    healed: Mapping[str, int]
    warnings: list[str]
    call_probability: float | None
    call_threshold: float | None
    called: bool
    units: Mapping[str, float]
    recorded: bool


class Histogram:
    """Counts of durations, in seconds, for each bucket of BOUNDS."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def observe(self, durations: Iterable[float]) -> float:
        """Returns the sum of the durations."""
        ordered = sorted(durations)
        total = sum(ordered)
        self.sum += total
        below = 0
        for bucket, bound in enumerate(BOUNDS):
            upto = bisect_right(ordered, bound)
            self.counts[bucket] += upto - below
            below = upto
        self.counts[-1] += len(ordered) - below
        return total


class Stats:
    """Counters of one model since the gateway started. A change of its settings doesn't reset them.

    requests: finished answers by API and outcome. duration: from a request to the end of its answer. first: until the
    first streamed payload. chunks: streamed payloads, about a token each. generated: chunks, and the tokens of whole
    answers. Token counts are the engines'. mended, healed, warnings: repaired answers, repaired past messages and
    unreadable text, by kind. decided: answers of which it was decided what they are, "calls" or "words". called:
    answers in which the client got a call. units: see `gateway.wire.usage.UNITS`.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[ApiName, Outcome]] = Counter()
        self.duration = Histogram()
        self.first = Histogram()
        self.chunks = 0
        self.generated = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.restored_tokens = 0
        self.seconds_saved = 0.0
        self.completion_tokens = 0
        self.mended: Counter[str] = Counter()
        self.healed: Counter[str] = Counter()
        self.warnings: Counter[str] = Counter()
        self.decided: Counter[str] = Counter()
        self.called = 0
        self.units: defaultdict[str, float] = defaultdict(float)

    def add(self, rows: Columns) -> Total:
        """rows: all of one API. Returns what they add to the usage."""
        # Column by column: most of the work then runs in C.
        answers, ok = len(rows.outcomes), rows.outcomes.count(OK)
        if ok:
            self.requests[rows.apis[0], OK] += ok
        if ok < answers:
            self.requests.update((rows.apis[0], outcome) for outcome in rows.outcomes if outcome != OK)
        seconds = self.duration.observe(map(sub, rows.ends, rows.began))
        if any(rows.firsts):
            self.first.observe([first - begin for first, begin in zip(rows.firsts, rows.began, strict=True) if first])
        chunks = sum(rows.chunks)
        counted = [*filter(None, rows.usages)]
        prompt, completion = _sum(counted, "prompt_tokens"), _sum(counted, "completion_tokens")
        streamed = rows.streams.count(True)
        if streamed == 0:
            whole = completion
        else:
            usages = zip(rows.usages, rows.streams, strict=True)
            whole = _sum([usage for usage, stream in usages if usage and not stream], "completion_tokens")
        details = [usage["prompt_tokens_details"] for usage in counted if "prompt_tokens_details" in usage]
        cached = _sum(details, "cached_tokens")
        self.chunks += chunks
        self.generated += chunks + whole
        self.prompt_tokens += prompt
        self.completion_tokens += completion
        self.cached_tokens += cached
        units: defaultdict[str, float] = defaultdict(float)
        if rows.apis[0] in _IN_UNITS:
            for unit, count in (pair for usage in counted for pair in units_of(usage).items()):
                units[unit] += count
                self.units[unit] += count
        restored = [usage for usage in counted if "restored_tokens" in usage]
        self.restored_tokens += _sum(restored, "restored_tokens")
        self.seconds_saved += sum(map(_saved, restored))
        self._add_repairs(filter(None, rows.repairs))
        if streamed and len(counted) < answers:  # of a stream without counts, a chunk is about a token
            columns = zip(rows.chunks, rows.streams, rows.usages, strict=True)
            completion += sum(chunks for chunks, stream, usage in columns if stream and not usage)
        errors = answers - ok - rows.outcomes.count(LEFT)
        sums = answers, errors, prompt, cached, completion, seconds
        if not units:
            return Total(*sums)
        return Total(*sums, units["sound_seconds"], int(units["characters"]), int(units["pictures"]))

    def _add_repairs(self, repairs: Iterable[RepairNotes]) -> None:
        for repair in repairs:
            self.healed.update(repair.healed)
            self.warnings.update(repair.warnings)
            self.called += repair.called
            if repair.decided is not None:
                self.decided["calls" if repair.decided.calls else "words"] += 1
            if repair.mended != "none":
                self.mended.update(repair.mended.split(", "))

    @property
    def calls(self) -> dict[str, int]:
        """Answers with calls that clients got, those of them that were repaired, and those that nobody read."""
        return {"read": self.called, "repaired": sum(self.mended.values()), "unread": self.warnings[UNREAD]}

    @property
    def outcomes(self) -> Counter[Outcome]:
        """Finished answers by outcome."""
        found: Counter[Outcome] = Counter()
        for (_, outcome), answers in self.requests.items():
            found[str(outcome)] += answers
        return found


class Total(Struct, gc=False):
    """Sums over answers. errors: those that failed, without clients that left. prompt_tokens includes cached_tokens.
    seconds: from requests to the ends of their answers. The last three: see `gateway.wire.usage.UNITS`."""

    requests: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    sound_seconds: float = 0.0
    characters: int = 0
    pictures: int = 0


UsageKey = tuple[str, str, str, str]
"""The dimensions of usage: day (UTC, as 2026-11-23), key, model, client."""


class UnsavedTotals:
    """Totals that the store doesn't have yet."""

    def __init__(self) -> None:
        self._totals: dict[UsageKey, Total] = {}

    def add(self, day: float, model: str, api: ApiName, caller: Caller, more: Total) -> None:
        """day: since 1970."""
        date = strftime("%Y-%m-%d", gmtime(day * DAY_SECONDS))
        client = caller.client or (api if api in _INTERNAL else "")
        self._add((date, caller.key, model, client), more)

    def take(self) -> dict[UsageKey, Total]:
        """The totals since the last call."""
        totals, self._totals = self._totals, {}
        return totals

    def put_back(self, totals: Mapping[UsageKey, Total]) -> None:
        """Returns totals that the store couldn't take."""
        for party, old in totals.items():
            self._add(party, old)

    def _add(self, party: UsageKey, more: Total) -> None:
        before = self._totals.get(party, Total())
        self._totals[party] = Total(*map(add, astuple(before), astuple(more)))


_IN_UNITS: tuple[ApiName, ...] = ("audio", "images", "ctx")
"""APIs whose requests count UNITS."""
_INTERNAL: tuple[ApiName, ...] = ("rooms", "ctx")
"""APIs whose requests don't come from a client program."""


_NO_ERRORS = (OK, LEFT)
DAY_SECONDS = 86400


def _saved(usage: Mapping[str, Any]) -> float:
    """Seconds that a restored prompt saved. Ignores other values: an upstream server may use the name, too."""
    value = usage.get("seconds_saved")
    return float(min(value, DAY_SECONDS)) if (type(value) is int or type(value) is float) and value > 0 else 0.0


class RequestLog:
    """Counts every answer and holds the last `size`. bodies: whether to keep their bytes. traced: spans tell them."""

    def __init__(self, size: int = 0, *, bodies: bool = False, traced: bool = False) -> None:
        self._traced = traced
        self.bodies, self.records = bodies, bodies or traced
        """records: whether every answer is recorded."""
        self.usage = UnsavedTotals()
        self.rows: list[Row] = []
        """Rows to settle. At UNSETTLED rows, the code that appends one calls `settle`."""
        self._stats: dict[str, Stats] = {}
        self._last: deque[Row] = deque(maxlen=size)
        self._total = 0
        self._kept: deque[tuple[ref[Recording], int]] = deque()
        """Recordings, the oldest first, and their sizes; the log's rows hold them."""
        self._kept_bytes = 0

    def settle(self) -> None:
        """Moves `rows` into the log and the counters."""
        rows, self.rows = self.rows, []
        self.add(rows, time() - monotonic())

    def add(self, rows: Sequence[Row], clock: float) -> None:
        """clock: seconds since 1970 minus time.monotonic()."""
        self._total += len(rows)
        self._last.extend(rows)
        for day, group in _groups(rows, clock) if rows else ():
            model, api, caller = group.models[0], group.apis[0], group.callers[0]
            more = self._stats.setdefault(model, Stats()).add(group)
            self.usage.add(day, model, api, caller, more)

    def stats(self, model: str) -> Stats:
        """The counters of a model, also of one that was removed from config.yaml."""
        self.settle()
        return self._stats.get(model) or Stats()

    def models(self) -> list[str]:
        """Names of the models with answers."""
        self.settle()
        return sorted(self._stats)

    def entries(self, after: int = 0) -> Iterator[LogEntry]:
        """Newest first. after: only those with greater numbers."""
        clock = time() - monotonic()
        for number, ended in self._newest():
            if number <= after:
                return
            yield _entry(number, ended, clock)

    def find(self, key: str) -> tuple[LogEntry, Recording | None] | None:
        """Finds an answer by its number, its key or, if it was recorded, the completion id that the client saw."""
        for number, ended in self._newest():
            kept = ended.kept
            if key in (str(number), key_of(ended.began)) or (kept is not None and key == kept.completion_id):
                return _entry(number, ended, time() - monotonic()), kept
        return None

    def refused(self, api: ApiName, caller: Caller, error: GatewayError, body: bytes) -> None:
        """Logs a request that never reached a model, such as one for an unknown model.

        It isn't counted for any model, since the name comes from the client.
        """
        self.settle()
        now = monotonic()
        recording = asked(body) if self.bodies else None
        if recording is not None:
            self.keep(recording)
        named = model_in(body)[:MAX_NAME]
        row: Row = (named, False, Failure.of(error), now, now, 0.0, {}, 0, None, recording, api, caller)
        self._total += 1
        self._last.append(row)

    def keep(self, recording: Recording) -> Recording:
        """The recording of an answer that ends now. Drops the oldest recordings to make room for it."""
        self._kept_bytes += recording.size
        while self._kept and (self._kept_bytes > MAX_RECORDED or self._kept[0][0]() is None):
            of, size = self._kept.popleft()
            self._kept_bytes -= size
            if (oldest := of()) is not None:
                oldest.clear()
        self._kept.append((ref(recording), recording.size))
        return recording

    def configure(self, size: int, *, bodies: bool) -> None:
        """Changes the settings. The newest `size` answers stay."""
        self.settle()
        self._last = deque(self._last, maxlen=size)
        self.bodies, self.records = bodies, bodies or self._traced

    def _newest(self) -> Iterator[tuple[int, Ended]]:
        """The answers, each with its number; the newest first."""
        self.settle()
        for behind, row in enumerate(reversed([*self._last])):
            yield self._total - behind, Ended(*row)


def _groups(rows: Sequence[Row], clock: float) -> Iterator[tuple[float, Columns]]:
    """The rows by day, model, API and caller; days are since 1970."""
    columns = Columns.of(rows)
    parties = columns.models, columns.apis, columns.callers
    day, last = ((clock + end) // DAY_SECONDS for end in (min(columns.ends), max(columns.ends)))
    if day == last and all(column.count(column[0]) == len(rows) for column in parties):
        yield day, columns  # nearly always, and cheaper than the general way
        return
    days = repeat(day) if day == last else [(clock + end) // DAY_SECONDS for end in columns.ends]
    found: defaultdict[tuple[float, str, ApiName, Caller], list[Row]] = defaultdict(list)
    for party, row in zip(zip(days, *parties, strict=False), rows, strict=True):
        found[party].append(row)
    for (day, *_), group in found.items():
        yield day, Columns.of(group)


def error_of(outcome: Outcome) -> Mapping[str, Any] | None:
    """The client's error message; None if the answer didn't fail."""
    if isinstance(outcome, Failure):
        found = outcome
    elif outcome in _NO_ERRORS:
        return None
    else:
        found = Failure.of(InternalError("the gateway failed; its log on standard error says why"))
    return {
        "message": found.message, "code": found.code, "status": found.status, "category": str(found),
        "retryable": found.retryable,
    }  # fmt: skip


def _entry(number: int, ended: Ended, clock: float) -> LogEntry:
    mending = ended.repairs or RepairNotes()
    prompt, cached, completion = tokens_of(ended.usage)
    return LogEntry(
        id=number,
        key=key_of(ended.began),
        at=clock + ended.end,
        model=ended.model,
        api=ended.api,
        client=ended.caller.client,
        stream=ended.stream,
        outcome=str(ended.outcome),
        error=error_of(ended.outcome),
        seconds=ended.end - ended.began,
        first_seconds=ended.first - ended.began if ended.first else None,
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
        restored_tokens=_sum([ended.usage], "restored_tokens"),
        seconds_saved=_saved(ended.usage),
        prefix=_prefix(ended.usage),
        mended=mending.mended,
        healed=mending.healed,
        warnings=mending.warnings,
        call_probability=mending.decided.probability if mending.decided is not None else None,
        call_threshold=mending.decided.threshold if mending.decided is not None else None,
        called=mending.called,
        units=units_of(ended.usage),
        recorded=ended.kept is not None,
    )


def _prefix(usage: Mapping[str, Any]) -> list[str]:
    found = usage.get("prefix")
    return [line for line in found if isinstance(line, str)] if isinstance(found, list) else []


def _sum(usages: Sequence[Mapping[str, Any]], key: str) -> int:
    """Sums a key over the engines' counts. Ignores anything but counts: an external server may send anything."""
    try:
        values = [*map(itemgetter(key), usages)]
        total = sum(values)
        if type(total) is int and 0 <= total <= MAX_TOKENS and (not values or min(values) >= 0):
            return total
    except (KeyError, TypeError):
        pass
    return sum(count(usage.get(key)) for usage in usages if isinstance(usage, Mapping))

"""From which probability on that a call begins a model should call: fitted on questions that must or mustn't. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from gateway.features.evaluation.tune.tools import Share

ORDERS: tuple[tuple[str, ...], ...] = ((), ("ask", "call", "hello"), ("ask", "chain", "hello"))
"""The values of `tool_examples` that are worth trying."""

GAIN = 0.05
"""What a threshold must add to the mean of due and quiet, on questions that it wasn't fitted on."""

WIDTH = 0.3
"""How far from the threshold, in log odds, a point counts on both sides."""

BARS = " ▁▂▃▄▅▆▇█"
BINS = 20


class Point(Struct, frozen=True):
    """One question: how likely a call begins the answer, and whether one is due."""

    case: str
    probability: float
    due: bool


class Fit(Struct, frozen=True):
    """What a threshold does on some questions. due: calls made where due. quiet: none where none was due."""

    threshold: float
    due: Share
    quiet: Share

    @property
    def mean(self) -> float:
        """Of the two rates: 0.5 for a coin, 1 for what is always right."""
        return (self.due.k / max(1, self.due.n) + self.quiet.k / max(1, self.quiet.n)) / 2


class Tried(Struct, frozen=True):
    """One order of examples. own: the model's own choice, which is a threshold of one half. fitted: on all questions.
    judged: on each half, by the threshold that was fitted on the other one. area: how well the probability tells due
    from needless, from 0.5 to 1."""

    examples: tuple[str, ...]
    points: tuple[Point, ...]
    own: Fit
    fitted: Fit
    judged: Fit
    area: float

    @property
    def decides_better(self) -> bool:
        return self.judged.mean >= self.own.mean + GAIN

    @property
    def keys(self) -> dict[str, str]:
        """For the model's entry in config.yaml."""
        keys = {"call_threshold": f"{self.fitted.threshold:.3f}"}
        return keys | ({"tool_examples": f"[{', '.join(self.examples)}]"} if self.examples else {})


def judge(points: Iterable[Point], threshold: float) -> Fit:
    due = quiet = called = kept = 0
    for point in points:
        calls = point.probability >= threshold
        due, quiet = due + point.due, quiet + (not point.due)
        called, kept = called + (point.due and calls), kept + (not point.due and not calls)
    return Fit(threshold, Share(called, due), Share(kept, quiet))


def fit(points: Sequence[Point]) -> Fit:
    """The threshold with the best mean, in the middle of the gap where it lies.

    Points near it count in part on both sides: few questions lie there, and which is luck. On four sets of 67 to 274
    questions (300 halvings each) that was judged 0.2 points worse to 0.9 better on the other half.
    """
    seen = sorted({0.0, 1.0, *(point.probability for point in points)})
    between = [(low + high) / 2 for low, high in itertools.pairwise(seen)] or [0.5]
    return judge(points, max(between, key=lambda threshold: _smooth_mean(points, threshold)))


def _smooth_mean(points: Sequence[Point], threshold: float) -> float:
    """The rate of calls where due minus that where not, twice the mean less one, with each point a curve."""
    at = _log_odds(threshold)
    calls = {True: 0.0, False: 0.0}
    for point in points:
        calls[point.due] += 1 / (1 + math.exp((at - _log_odds(point.probability)) / WIDTH))
    due = sum(point.due for point in points)
    return calls[True] / max(1, due) - calls[False] / max(1, len(points) - due)


def _log_odds(probability: float) -> float:
    inside = min(max(probability, 1e-4), 1 - 1e-4)
    return math.log(inside / (1 - inside))


def tried(examples: tuple[str, ...], points: Sequence[Point]) -> Tried:
    """points: of questions in a fixed order; every other one of each kind is a half."""
    halves: tuple[list[Point], list[Point]] = ([], [])
    for kind in (True, False):
        for at, point in enumerate(point for point in points if point.due is kind):
            halves[at % 2].append(point)
    one, other = (judge(halves[1 - at], fit(halves[at]).threshold) for at in (0, 1))
    whole = fit(points)
    judged = Fit(whole.threshold, _sum(one.due, other.due), _sum(one.quiet, other.quiet))
    return Tried(examples, tuple(points), judge(points, 0.5), whole, judged, area(points))


def _sum(one: Share, other: Share) -> Share:
    return Share(one.k + other.k, one.n + other.n)


def area(points: Sequence[Point]) -> float:
    """That under the curve of due and quiet: the chance that a due call is likelier than a needless one."""
    due = [point.probability for point in points if point.due]
    quiet = [point.probability for point in points if not point.due]
    if not due or not quiet:
        return 0.5
    return sum((d > q) + (d == q) / 2 for d in due for q in quiet) / len(due) / len(quiet)


def choose(found: Sequence[Tried]) -> Tried | None:
    """The best by what was judged on the other half; None if the model decides as well by itself."""
    better = [each for each in found if each.decides_better and each.judged.mean >= found[0].own.mean + GAIN]
    return max(better, key=lambda each: each.judged.mean, default=None)


def read(samples: Iterable[Mapping[str, Any]], due: Mapping[str, bool]) -> list[Point]:
    """From the samples of a run of model-test. due: whether the first answer to each case must call. Leaves out answers
    that the model decided by itself, such as those after a tool's result."""
    found = []
    for sample in samples:
        case, answers = sample.get("case"), sample.get("answers") or ()
        probability = answers[0].get("call_probability") if answers else None
        if isinstance(case, str) and case in due and probability is not None:
            found.append(Point(case, float(probability), due[case]))
    return sorted(found, key=lambda point: point.case)


def histogram(points: Iterable[Point], *, due: bool) -> str:
    """One bar for each twentieth of the probability, from 0 to 1."""
    counts = [0] * BINS
    for point in points:
        if point.due is due:
            counts[min(BINS - 1, int(point.probability * BINS))] += 1
    maximum = max(counts) or 1
    return "".join(BARS[-(-count * (len(BARS) - 1) // maximum)] for count in counts)


def note(chosen: Tried, suite: str, day: str) -> str:
    """The figures of the choice for a comment in config.yaml."""
    return (
        f"{suite} {day}: calls where due {chosen.judged.due}, quiet where due {chosen.judged.quiet}; without: "
        f"{chosen.own.due}, {chosen.own.quiet}; each half judged by the threshold of the other"
    )

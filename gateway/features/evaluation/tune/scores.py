"""Evaluates the measurements of settings: means, intervals, the best one, and the effect of each key. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev

from msgspec import Struct

T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)
"""Student's t for 95 %, two-sided, with 1, 2, … degrees of freedom."""
NORMAL95 = 1.96

WORTH = 1.03
"""A setting must be this much faster than the model's own to be chosen."""
LEVEL = 0.98
"""Settings within this share of the fastest one count as equally fast."""

TURN = 2
"""Requests of each kind that a setting answers in one turn."""


class Reading(Struct, frozen=True):
    """One answer. Seconds: first: to the first token; whole: to the end.

    read: tokens of the prompt that the engine read. words: a digest of the answer, None if it is sampled at random.
    """

    kind: str
    number: int
    read: int
    written: int
    first: float
    whole: float
    words: str | None = None

    @property
    def request(self) -> tuple[str, int]:
        return self.kind, self.number

    @property
    def speed(self) -> float:
        """Tokens written per second, including the time to read the prompt."""
        return self.written / self.whole


class Result(Struct, frozen=True):
    """The measurements of one setting. keys: as in config.yaml. memory: peak bytes; 0: not measured.

    failed: why its engine doesn't run with it.
    """

    keys: Mapping[str, object]
    readings: list[Reading] = []
    memory: int = 0
    failed: str | None = None

    def speeds(self) -> dict[tuple[str, int], float]:
        return {reading.request: reading.speed for reading in self.readings}


class Estimate(Struct, frozen=True):
    """A geometric mean with its 95 % interval; the bounds are infinite if there is only one value."""

    mean: float
    low: float
    high: float


def estimate(values: Iterable[float]) -> Estimate:
    """Of at least one positive value."""
    logs = [math.log(value) for value in values]
    mean, free = fmean(logs), len(logs) - 1
    if not free:
        return Estimate(math.exp(mean), 0.0, math.inf)
    half = (T95[free - 1] if free <= len(T95) else NORMAL95) * stdev(logs) / math.sqrt(len(logs))
    # The exponential of the bounds' logarithm may overflow where two values are far apart.
    return Estimate(math.exp(mean), _exp(mean - half), _exp(mean + half))


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def ratio(result: Result, base: Result) -> Estimate | None:
    """How many times as fast as `base`, on the requests that both answered; None without any.

    Each number of a request is one sample: the geometric mean over its kinds of text.
    """
    own, other = result.speeds(), base.speeds()
    samples: dict[int, list[float]] = {}
    for request in sorted(own.keys() & other.keys()):
        samples.setdefault(request[1], []).append(own[request] / other[request])
    if not samples:
        return None
    return estimate(math.exp(fmean(math.log(each) for each in sample)) for sample in samples.values())


def same_words(result: Result, base: Result) -> bool:
    """Whether all requests that both answered, and that aren't sampled at random, have the same words."""
    words = {reading.request: reading.words for reading in base.readings}
    return all(words.get(reading.request, reading.words) == reading.words for reading in result.readings)


def survivors(results: Sequence[Result], keep: int) -> list[Result]:
    """The `keep` fastest settings that may be chosen, and the first one, to which all are compared."""
    base, *others = results
    able = [result for result in others if not result.failed and same_words(result, base)]
    ranked = [(found.mean, result) for result in able if (found := ratio(result, base))]
    ranked.sort(key=lambda pair: pair[0], reverse=True)
    return [base, *(result for _, result in ranked[:keep])]


def rungs(count: int) -> list[tuple[int, int]]:
    """Successive halving of `count` settings: (how many compete, how many requests of each kind each answers).

    Each rung keeps half of the settings, and gives each twice as many requests; the last one compares two.
    """
    found, repeats = [(count, 1)], 1
    while count > 2:
        count = max(2, (count + 1) // 2)
        found.append((count, repeats))
        repeats *= 2
    return found


def passes(numbers: Sequence[int]) -> list[Sequence[int]]:
    """How many requests a setting answers in one turn: each turn starts an engine."""
    return [numbers[at : at + TURN] for at in range(0, len(numbers), TURN)]


def choose(results: Sequence[Result]) -> Result:
    """The fastest setting whose answers at temperature 0 have the same words as those of the first, the model's own.

    Of several as fast, the one that needs the least memory. The first one, unless another is WORTH it, and faster by
    more than chance: its interval lies above 1, which takes several answers.
    Compares only settings that answered nearly as many requests as any, since others were dropped. Their numbers may
    differ a little, because the time may run out within a turn.
    """
    base = results[0]
    able = [result for result in results if not result.failed and result.readings and same_words(result, base)]
    maximum = max((len(result.readings) for result in able if result is not base), default=0)
    kinds = len({reading.kind for reading in base.readings})
    ranked = {
        place: found.mean
        for place, result in enumerate(able)
        if result is not base
        and len(result.readings) >= maximum - TURN * kinds
        and (found := ratio(result, base)) is not None
        and found.low > 1
    }
    if not ranked or max(ranked.values()) < WORTH:
        return base
    fastest = max(ranked.values())
    level = [place for place, mean in ranked.items() if mean >= fastest * LEVEL and mean >= WORTH]
    return able[min(level, key=lambda place: (able[place].memory, -ranked[place]))]


class Effect(Struct, frozen=True):
    """The effect of one value of a key compared with another, all other keys being equal."""

    key: str
    value: object
    instead_of: object
    times: Estimate
    pairs: int


def effects(results: Sequence[Result], chosen: Result) -> list[Effect]:
    """The effects of each key of the chosen setting, over all pairs of settings that differ only in that key."""
    found = []
    running = [result for result in results if result.readings and result.keys]
    for key, value in chosen.keys.items():
        pairs: list[tuple[object, float]] = []
        for own in running:
            if own.keys.get(key) != value:
                continue
            for other in running:
                if _but(own, key) == _but(other, key) and other.keys.get(key) != value and (times := ratio(own, other)):
                    pairs.append((other.keys.get(key), times.mean))
        others = [each for place, (each, _) in enumerate(pairs) if each not in [had for had, _ in pairs[:place]]]
        for other_value in others:
            means = [mean for each, mean in pairs if each == other_value]
            found.append(Effect(key, value, other_value, estimate(means), len(means)))
    return found


def _but(result: Result, key: str) -> dict[str, object]:
    return {name: value for name, value in result.keys.items() if name != key}

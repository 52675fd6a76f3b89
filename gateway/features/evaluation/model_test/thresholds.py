"""What every `call_threshold` would pass, from two runs: one in which each answer must be a call where the threshold
decides, and one in which it must be words. Pure, but for the picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from gateway.features.evaluation.model_test.cases import Case, Json

CALLS, WORDS = 0.0, 1.0
"""The thresholds of the two runs."""
ROWS = 12


class Decision(Struct, frozen=True):
    """One case. probability: of a call; None where the threshold doesn't decide. due: whether its first answer must be
    a call; None if it may be either. call, words: whether it passes then."""

    probability: float | None
    due: bool | None
    call: bool
    words: bool


class Step(Struct, frozen=True):
    """What a threshold does. Of those where a call is due or needless, only what it decides counts as made."""

    threshold: float
    passed: int
    due: int
    needless: int


class Curve(Struct, frozen=True):
    """steps: for each threshold at which something changes, ascending. asked, due, quiet: how many cases there are, and
    how many of those that the threshold decides must call, and mustn't."""

    steps: tuple[Step, ...]
    asked: int
    due: int
    quiet: int

    @property
    def best(self) -> Step:
        """The one that passes most; of several, the one in the middle."""
        maximum = max(step.passed for step in self.steps)
        best = [step for step in self.steps if step.passed == maximum]
        return best[len(best) // 2]

    def shown(self) -> list[Step]:
        """The best one, and others at even distances."""
        last = len(self.steps) - 1
        at = {round(last * number / (ROWS - 1)) for number in range(ROWS)} | {self.steps.index(self.best)}
        return [self.steps[each] for each in sorted(at)]


def decisions(cases: Iterable[Case], calls: Iterable[Json], words: Iterable[Json]) -> list[Decision]:
    """calls, words: the samples of either run. A case counts if both have an answer to it."""
    called, said = _by_case(calls), _by_case(words)
    found = []
    for case in cases:
        if case.id in called and case.id in said:
            first = called[case.id]
            probability = first[0]["answers"][0].get("call_probability") if first[0]["answers"] else None
            found.append(Decision(probability, case.must_call, _passed(first), _passed(said[case.id])))
    return found


def _by_case(samples: Iterable[Json]) -> dict[str, list[Json]]:
    found: dict[str, list[Json]] = {}
    for sample in samples:
        if sample["status"] != "error":
            found.setdefault(sample["case"], []).append(sample)
    return found


def _passed(samples: Sequence[Json]) -> bool:
    return all(sample["status"] == "pass" for sample in samples)


def curve(found: Sequence[Decision]) -> Curve:
    decided = [each for each in found if each.probability is not None]
    thresholds = sorted({CALLS, WORDS, *(each.probability for each in decided if each.probability is not None)})
    return Curve(
        tuple(_step(found, threshold) for threshold in thresholds),
        len(found),
        sum(each.due is True for each in decided),
        sum(each.due is False for each in decided),
    )


def _step(found: Sequence[Decision], threshold: float) -> Step:
    calls = [each for each in found if each.probability is not None and each.probability >= threshold]
    words = [each for each in found if each.probability is None or each.probability < threshold]
    return Step(
        threshold,
        sum(each.call for each in calls) + sum(each.words for each in words),
        sum(each.due is True for each in calls),
        sum(each.due is False for each in calls),
    )


def rows(found: Curve) -> list[tuple[str, ...]]:
    """For a table: best, threshold, passed, due calls made, needless calls."""
    return [
        (
            "*" if step is found.best else "",
            f"{step.threshold:.3f}",
            f"{step.passed} of {found.asked}",
            f"{step.due} of {found.due}",
            f"{step.needless} of {found.quiet}",
        )
        for step in found.shown()
    ]


def draw(file: Path, model: str, found: Curve) -> bool:
    """False where there is nothing to draw with."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    from gateway.features.evaluation.model_test.page import BEFORE, NOW

    figure: Any = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    across = [step.threshold for step in found.steps]
    lines: Mapping[str, tuple[list[float], str]] = {
        "passed": ([step.passed / max(1, found.asked) for step in found.steps], "#1d2733"),
        "due calls made": ([step.due / max(1, found.due) for step in found.steps], NOW),
        "needless calls": ([step.needless / max(1, found.quiet) for step in found.steps], BEFORE),
    }
    for name, (rates, colour) in lines.items():
        axes.step(across, [100 * rate for rate in rates], where="pre", label=name, color=colour)
    axes.axvline(found.best.threshold, color="#1d2733", linestyle="--")
    axes.set_title(f"{model}: {found.best.passed} of {found.asked} pass with {found.best.threshold:.3f}", fontsize=10)
    axes.set_xlabel("call_threshold")
    axes.set_ylabel("%")
    axes.legend(frameon=False)
    figure.savefig(file, dpi=110)
    return True

"""What `ctxgate tune --calls` found, as a picture, where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway.features.evaluation.model_test.page import BEFORE, NOW
from gateway.features.evaluation.tune.calls import BINS, Tried, judge

STEPS = 200
"""Points of a curve."""


def draw(file: Path, model: str, found: Sequence[Tried]) -> bool:
    """Both histograms and the curve of each order of examples. False where there is nothing to draw with."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure: Any = Figure(figsize=(11, 3.2 * len(found)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{model}: how likely it is that an answer begins a call")
    for row, each in enumerate(found):
        _histograms(figure.add_subplot(len(found), 2, 2 * row + 1), each)
        _curve(figure.add_subplot(len(found), 2, 2 * row + 2), each)
    figure.savefig(file, dpi=110)
    return True


def _histograms(axes: Any, found: Tried) -> None:
    kinds = (("a call is due", True, NOW), ("a call is needless", False, BEFORE))
    values = [[point.probability for point in found.points if point.due is due] for _, due, _ in kinds]
    labels, colours = [name for name, _, _ in kinds], [colour for _, _, colour in kinds]
    axes.hist(values, bins=BINS, range=(0, 1), label=labels, color=colours)
    axes.axvline(found.fitted.threshold, color="#1d2733", linestyle="--")
    axes.set_title(f"examples: {', '.join(found.examples) or 'none'}", fontsize=10)
    axes.set_xlabel(f"probability of a call; the threshold is {found.fitted.threshold:.3f}")
    axes.set_ylabel("questions")
    axes.legend(frameon=False)


def _curve(axes: Any, found: Tried) -> None:
    thresholds = [at / STEPS for at in range(STEPS + 1)]
    fits = [judge(found.points, threshold) for threshold in thresholds]
    for name, rates, colour in (
        ("due calls made", [100 * fit.due.k / max(1, fit.due.n) for fit in fits], NOW),
        ("quiet where due", [100 * fit.quiet.k / max(1, fit.quiet.n) for fit in fits], BEFORE),
        ("mean", [100 * fit.mean for fit in fits], "#1d2733"),
    ):
        axes.plot(thresholds, rates, label=name, color=colour)
    axes.axvline(found.fitted.threshold, color="#1d2733", linestyle="--")
    axes.set_xlabel("threshold")
    axes.set_ylabel("right, %")
    axes.legend(frameon=False)

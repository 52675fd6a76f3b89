"""The report as a PNG, where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.features.evaluation.model_test.cases import Json
from gateway.features.evaluation.model_test.judge import KINDS
from gateway.features.evaluation.model_test.page import BEFORE, NOW, PALETTE
from gateway.features.evaluation.model_test.stats import wilson


def draw(file: Path, result: Json, baseline: Json | None) -> bool:
    """False where there is nothing to draw with."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure: Any = Figure(figsize=(12, 7.5), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 2, width_ratios=(1.5, 1))
    name = result["target"]["model"]
    suite = f"{result['suite']['id']}, {result['suite']['n']} cases, {result.get('created', '')[:10]}"
    figure.suptitle(f"{name}: calling tools ({suite})")
    _accuracy(figure.add_subplot(grid[:, 0]), result["summary"], baseline["summary"] if baseline else None)
    _failures(figure.add_subplot(grid[0, 1]), result["metrics"]["kinds"])
    _times(figure.add_subplot(grid[1, 1]), result["cases"], baseline["cases"] if baseline else None)
    figure.savefig(file, dpi=110)
    return True


def _accuracy(axes: Any, now: Json, before: Json | None) -> None:
    names = ["overall", *sorted((name for name in now if name != "overall"), reverse=True)]
    series = [(now, NOW, 0.17 if before else 0.0, "this run")]
    if before:
        series.append((before, BEFORE, -0.22, "baseline"))
    for shares, colour, shift, label in series:
        places = [index for index, name in enumerate(names) if shares.get(name, {}).get("n")]
        chosen = [shares[names[index]] for index in places]
        rates = [100 * share["k"] / share["n"] for share in chosen]
        bounds = [wilson(share["k"], share["n"]) for share in chosen]
        whiskers = [
            [max(0.0, rate - 100 * low) for rate, (low, _) in zip(rates, bounds, strict=True)],
            [max(0.0, 100 * high - rate) for rate, (_, high) in zip(rates, bounds, strict=True)],
        ]
        height = 0.36 if before else 0.6
        heights = [place + shift for place in places]
        axes.barh(heights, rates, height=height, color=colour, label=label, xerr=whiskers, ecolor="#1d2733", capsize=2)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlim(0, 100)
    axes.set_xlabel("passed, %, with 95 % intervals")
    if before:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.07), ncols=2, frameon=False)


def _failures(axes: Any, kinds: Mapping[str, int]) -> None:
    ordered = [kind for kind in KINDS if kind in kinds]
    left = 0
    for index, kind in enumerate(ordered):
        colour = PALETTE[index % len(PALETTE)]
        axes.barh([0], [kinds[kind]], left=left, color=colour, label=f"{kind} {kinds[kind]}", edgecolor="white")
        left += kinds[kind]
    axes.set_yticks([])
    axes.set_ylim(-1, 1)
    axes.set_title("failures by kind" if ordered else "no failures", fontsize=10)
    if ordered:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, fontsize=8, frameon=False)


def _times(axes: Any, now: Mapping[str, Json], before: Mapping[str, Json] | None) -> None:
    for label, colour, cases in (("this run", NOW, now), ("baseline", BEFORE, before or {})):
        seconds = sorted(case["ms"] / 1000 for case in cases.values() if case.get("ms"))
        if len(seconds) > 1:
            shares = [100 * rank / len(seconds) for rank in range(1, len(seconds) + 1)]
            axes.step(seconds, shares, where="post", color=colour, label=label)
    axes.set_title("cases answered within a time", fontsize=10)
    axes.set_xlabel("s")
    axes.set_ylabel("%")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right")

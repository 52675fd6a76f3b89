"""The statistics against published and independently computed values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.features.evaluation.model_test import stats


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [
        (0, 10, 0, 0.2775),
        (9, 10, 0.5958, 0.9821),
        (45, 50, 0.7864, 0.9565),
        (80, 100, 0.7112, 0.8666),
        (360, 400, 0.8667, 0.9257),
    ],
)
def test_wilson(k: int, n: int, low: float, high: float) -> None:
    assert stats.wilson(k, n) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    ("n", "points"), [(16, 18), (30, 14), (50, 11), (100, 7.8), (200, 5.5), (400, 3.9), (1000, 2.5)]
)
def test_half_width_of_wilson_at_80_percent(n: int, points: float) -> None:
    low, high = stats.wilson(round(0.8 * n), n)
    assert 50 * (high - low) == pytest.approx(points, abs=0.6)


@pytest.mark.parametrize(
    ("b", "c", "p"),
    [
        (5, 0, 0.0625),
        (6, 0, 0.03125),
        (8, 1, 0.03906),
        (8, 2, 0.10938),
        (10, 2, 0.03857),
        (12, 4, 0.07681),
        (20, 8, 0.0357),
        (3, 3, 1),
    ],
)
def test_mcnemar_two_sided(b: int, c: int, p: float) -> None:
    assert stats.mcnemar(b, c) == pytest.approx(p, abs=5.1e-6 if p != 0.0357 else 5e-5)
    assert stats.mcnemar(c, b) == stats.mcnemar(b, c)


def test_smallest_loss() -> None:
    assert [stats.smallest_loss(c) for c in range(9)] == [5, 7, 9, 10, 12, 13, 15, 16, 18]
    assert [stats.smallest_loss(c, two_sided=True) for c in range(9)] == [6, 8, 10, 12, 13, 15, 17, 18, 20]


def test_newcombes_own_example() -> None:
    assert stats.newcombe_paired(36, 12, 2, 0) == pytest.approx((0.0569, 0.3404), abs=5e-5)


@pytest.mark.parametrize(
    ("n", "drop", "flips", "power"),
    [
        (100, 0.02, 0.06, 0.04),
        (400, 0.02, 0.06, 0.31),
        (800, 0.02, 0.06, 0.59),
        (1600, 0.02, 0.06, 0.91),
        (100, 0.05, 0.10, 0.26),
        (200, 0.05, 0.10, 0.55),
        (400, 0.05, 0.10, 0.87),
        (50, 0.10, 0.16, 0.28),
        (100, 0.10, 0.16, 0.68),
        (200, 0.10, 0.16, 0.94),
    ],
)
def test_power(n: int, drop: float, flips: float, power: float) -> None:
    assert stats.power(n, drop, flips, two_sided=True) == pytest.approx(power, abs=0.025)  # these were simulated


def test_holm() -> None:
    assert stats.holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}) == pytest.approx(
        {"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02}
    )


def test_balanced_equals_mcnemar_where_one_group_never_flips() -> None:
    assert stats.balanced_worse((5, 0, 30), (0, 0, 90)) == pytest.approx(stats.mcnemar_worse(5, 0))


def test_ratio_of_paired_times() -> None:
    ratio, (low, high) = stats.bootstrap_ratio([1.5] * 10)
    assert (ratio, low, high) == pytest.approx((1.5, 1.5, 1.5))


COUNT = st.integers(0, 60)


@given(COUNT, COUNT, COUNT, COUNT)
def test_intervals_hold_what_they_are_about(both: int, b: int, c: int, neither: int) -> None:
    n = both + b + c + neither
    low, high = stats.newcombe_paired(both, b, c, neither)
    assert -1 - 1e-9 <= low <= high <= 1 + 1e-9
    if n:
        assert low - 1e-9 <= (b - c) / n <= high + 1e-9
        mirrored = stats.newcombe_paired(both, c, b, neither)
        assert mirrored == pytest.approx((-high, -low))


@given(COUNT, COUNT)
def test_more_losses_are_never_less_suspicious(b: int, c: int) -> None:
    assert stats.mcnemar_worse(b + 1, c) <= stats.mcnemar_worse(b, c) + 1e-12

"""A threshold is fitted on one half of the questions and judged on the other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.features.evaluation.tune.calls import (
    BINS,
    Point,
    choose,
    fit,
    histogram,
    judge,
    note,
    read,
    tried,
)

POINTS = st.lists(st.builds(Point, st.text(max_size=3), st.floats(0, 1), st.booleans()), min_size=1, max_size=40)


def points(due: list[float], quiet: list[float]) -> list[Point]:
    return [Point(f"d{at}", p, True) for at, p in enumerate(due)] + [
        Point(f"q{at}", p, False) for at, p in enumerate(quiet)
    ]


@given(POINTS)
def test_a_fit_judges_every_question_by_a_probability(found: list[Point]) -> None:
    best = fit(found)
    assert 0 <= best.threshold <= 1
    assert best == judge(found, best.threshold)
    assert best.due.n + best.quiet.n == len(found)


@given(st.lists(st.floats(0.9, 1), min_size=1, max_size=20), st.lists(st.floats(0, 0.1), min_size=1, max_size=20))
def test_no_threshold_is_better_where_a_gap_divides_the_kinds(due: list[float], quiet: list[float]) -> None:
    best = fit(points(due, quiet))
    assert (best.due.k, best.quiet.k) == (len(due), len(quiet))


def test_a_wide_gap_with_one_question_on_its_wrong_side_is_better_than_a_narrow_one() -> None:
    found = points([0.2] * 10 + [0.0101], [0.01] * 10)
    assert judge(found, 0.01005).mean == 1
    assert 0.05 < fit(found).threshold < 0.2


@given(POINTS)
def test_every_question_is_judged_once_by_the_other_half(found: list[Point]) -> None:
    result = tried((), found)
    assert result.judged.due.n == sum(point.due for point in found)
    assert result.judged.quiet.n == sum(not point.due for point in found)
    assert 0 <= result.area <= 1


def test_what_can_be_told_apart_is() -> None:
    found = tried(("ask", "call", "hello"), points([0.2, 0.25, 0.3, 0.4] * 5, [0.0, 0.01, 0.02, 0.1] * 5))
    assert found.area == 1
    assert 0.1 < found.fitted.threshold < 0.2
    assert (found.judged.due.k, found.judged.quiet.k) == (20, 20)
    assert (found.own.due.k, found.own.quiet.k) == (0, 20)
    assert choose([found]) is found
    assert found.keys == {"call_threshold": "0.150", "tool_examples": "[ask, call, hello]"}
    assert note(found, "core", "2026-11-26").startswith("core 2026-11-26: calls where due 20 of 20, ")


def test_a_model_that_decides_well_is_left_alone() -> None:
    assert choose([tried((), points([0.9, 0.99] * 5, [0.01, 0.2] * 5))]) is None


def test_a_coin_has_no_threshold() -> None:
    alike = [0.1, 0.3, 0.5, 0.7, 0.9] * 4
    found = tried((), points(alike, alike))
    assert found.area == pytest.approx(0.5)
    assert choose([found]) is None


def test_examples_must_beat_the_model_without_them() -> None:
    good = tried((), points([0.9] * 10, [0.1] * 10))
    harmed = tried(("hello",), points([0.1, 0.2] * 5, [0.3, 0.05] * 5))
    assert choose([good, harmed]) is None


def test_answers_that_nobody_decided_are_left_out() -> None:
    samples: list[dict[str, Any]] = [
        {"case": "b", "answers": [{"call_probability": 0.0}]},
        {"case": "a", "answers": [{"call_probability": 0.5}, {"call_probability": 1.0}]},
        {"case": "after-a-result", "answers": [{"content": "21"}]},
        {"case": "either way is right", "answers": [{"call_probability": 0.5}]},
        {"case": "failed", "answers": []},
        {"about": "the run"},
    ]
    due = {"a": True, "b": False, "after-a-result": False, "failed": True}
    assert read(samples, due) == [Point("a", 0.5, True), Point("b", 0.0, False)]


def test_the_picture_has_a_bar_for_each_twentieth() -> None:
    bars = histogram(points([0.0, 0.0, 1.0], [0.5]), due=True)
    assert len(bars) == BINS
    assert bars[0] == "█"
    assert bars[-1] == "▄"
    assert bars[1:-1].strip() == ""

"""Successive halving, intervals and the choice, as laws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.features.evaluation.tune.scores import (
    LEVEL,
    WORTH,
    Reading,
    Result,
    choose,
    effects,
    estimate,
    passes,
    ratio,
    rungs,
    same_words,
    survivors,
)

KINDS = ("prose", "code edit")

speeds = st.floats(1.0, 500.0)
ratios = st.floats(0.1, 10.0)


def reading(speed: float, kind: str = "prose", number: int = 0, words: str | None = "same") -> Reading:
    return Reading(kind, number, 100, 96, 0.1, 96 / speed, words)


def result(threads: int, values: Sequence[float], memory: int = 0, words: str = "same") -> Result:
    """Answers with these speeds, to each kind of text the same."""
    found = [reading(speed, kind, number, words) for number, speed in enumerate(values) for kind in KINDS]
    return Result({"threads": threads}, found, memory)


@given(st.integers(1, 200))
def test_each_rung_keeps_half_and_the_last_one_compares_two(count: int) -> None:
    plan = rungs(count)
    assert plan[0] == (count, 1)
    assert plan[-1][0] == min(count, 2)
    for (before, _), (after, _) in pairwise(plan):
        assert before / 2 <= after <= before / 2 + 1
    # No rung asks more than the first one, but for what halves leave over.
    assert all(kept * repeats <= 2 * count for kept, repeats in plan)


@given(st.lists(speeds, min_size=1, max_size=30))
def test_an_estimate_holds_its_mean(values: list[float]) -> None:
    found = estimate(values)
    assert found.low <= found.mean * (1 + 1e-9)
    assert found.mean <= found.high * (1 + 1e-9)
    assert min(values) * (1 - 1e-9) <= found.mean <= max(values) * (1 + 1e-9)


@given(st.lists(speeds, min_size=2, max_size=10), st.floats(0.01, 100))
def test_an_estimate_scales_with_its_values(values: list[float], factor: float) -> None:
    one, other = estimate(values), estimate(value * factor for value in values)
    assert other.mean == pytest.approx(one.mean * factor)
    assert other.low == pytest.approx(one.low * factor)


def test_one_value_says_nothing_of_the_spread() -> None:
    assert estimate([7.0]) == (found := estimate([7.0]))
    assert (found.low, found.high) == (0.0, math.inf)
    assert found.mean == pytest.approx(7.0)


def test_the_interval_is_students() -> None:
    # Of 1, 2 and 4 the logarithms are 0, l and 2 l: their mean is l, their deviation l, and t is 4.30.
    half = 4.30 * math.log(2) / math.sqrt(3)
    found = estimate([1, 2, 4])
    assert (found.mean, found.high) == pytest.approx((2.0, 2 * math.exp(half)))


@given(st.lists(st.tuples(speeds, ratios), min_size=1, max_size=6))
def test_a_ratio_compares_the_same_requests(pairs: list[tuple[float, float]]) -> None:
    base = result(1, [speed for speed, _ in pairs])
    other = result(2, [speed * times for speed, times in pairs])
    found, inverse = ratio(other, base), ratio(base, other)
    assert found is not None
    assert inverse is not None
    assert found.mean == pytest.approx(math.prod(times for _, times in pairs) ** (1 / len(pairs)))
    assert inverse.mean == pytest.approx(1 / found.mean)


def test_there_is_no_ratio_without_a_request_that_both_answered() -> None:
    assert ratio(Result({}, [reading(5, number=1)]), Result({}, [reading(5, number=2)])) is None


@given(st.lists(speeds, min_size=1, max_size=12), st.integers(1, 12))
def test_the_survivors_are_the_fastest_beside_the_first(values: list[float], keep: int) -> None:
    results = [result(place, [speed]) for place, speed in enumerate([10.0, *values])]
    base, *others = survivors(results, keep)
    assert base is results[0]
    assert len(others) == min(keep, len(values))
    kept = sorted((each.readings[0].speed for each in others), reverse=True)
    assert kept == pytest.approx(sorted(values, reverse=True)[:keep])


def test_what_cannot_be_chosen_does_not_survive() -> None:
    broken, other = replace(result(1, [100]), failed="no memory"), result(2, [100], words="others")
    results = [result(0, [10]), broken, other, result(3, [1])]
    assert survivors(results, 3) == [results[0], results[3]]


@given(st.lists(speeds, min_size=1, max_size=12))
def test_the_choice_is_within_a_few_percent_of_the_fastest(values: list[float]) -> None:
    results = [result(place, [speed] * 2) for place, speed in enumerate(values)]
    found = choose(results)
    fastest = max(values)
    own = found.readings[0].speed
    assert own >= fastest * LEVEL * (1 - 1e-9) or (found is results[0] and fastest < own * WORTH * (1 + 1e-9))


def test_the_choice_is_faster_by_more_than_chance() -> None:
    base = result(0, [10, 10, 10])
    assert choose([base, result(1, [9, 40, 9])]) is base
    assert choose([base, result(1, [40])]) is base
    steady = result(1, [12, 12.1, 12])
    assert choose([base, steady]) is steady


def test_the_choice_never_changes_words() -> None:
    results = [result(0, [10, 10]), result(1, [100, 100], words="others"), result(2, [12, 12])]
    assert not same_words(results[1], results[0])
    assert choose(results) is results[2]


def test_answers_drawn_by_chance_need_not_have_the_same_words() -> None:
    drawn = Result({}, [reading(5, words=None)])
    assert same_words(drawn, Result({}, [reading(5, words=None)]))


def test_of_two_as_fast_the_smaller_one_is_chosen() -> None:
    results = [result(0, [10] * 2), result(1, [20.2] * 2, memory=900), result(2, [20.0] * 2, memory=500)]
    assert choose(results) is results[2]


def test_the_own_setting_stays_unless_another_is_worth_it() -> None:
    results = [result(0, [10] * 2), result(1, [10.2] * 2)]
    assert choose(results) is results[0]


def test_a_setting_that_was_given_up_is_not_chosen() -> None:
    results = [result(0, [10] * 5), result(1, [40] * 2), result(2, [20] * 5)]
    assert choose(results) is results[2]


def test_a_setting_whose_last_turn_did_not_come_can_be_chosen() -> None:
    results = [result(0, [10] * 6), result(1, [40] * 4), result(2, [20] * 6)]
    assert choose(results) is results[1]


def test_settings_take_turns() -> None:
    assert passes(range(3, 4)) == [range(3, 4)]
    assert passes(range(4, 8)) == [range(4, 6), range(6, 8)]


def test_an_effect_compares_settings_that_differ_in_that_key_alone() -> None:
    def made(threads: int, cache: str, speed: float) -> Result:
        return Result({"threads": threads, "kv_cache_type": cache}, [reading(speed)])

    results = [made(1, "f16", 10), made(2, "f16", 20), made(1, "q8_0", 11), made(2, "q8_0", 24)]
    found = {effect.key: effect for effect in effects(results, results[3])}
    assert (found["threads"].instead_of, found["threads"].pairs) == (1, 2)
    assert found["threads"].times.mean == pytest.approx(math.sqrt(20 / 10 * 24 / 11))
    assert found["kv_cache_type"].times.mean == pytest.approx(math.sqrt(11 / 10 * 24 / 20))

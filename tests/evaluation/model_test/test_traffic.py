"""What the gate of recorded requests takes for right, and how often it decides rightly."""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gateway.features.evaluation.model_test.answers import ModelAnswer, RawCall
from gateway.features.evaluation.model_test.traffic import Asked, Decision, Fault, Pair, decide, decided, fault, needed

ROOT = Path(__file__).parents[3]
TOOL = {
    "type": "function",
    "function": {
        "name": "book",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "class": {"type": "string", "enum": ["first", "second"]},
                "seats": {"type": "integer", "default": 1},
                "stops": {"type": "array", "items": {"type": "string"}},
                "quiet": {"type": "boolean"},
                "note": {"type": "string"},
            },
            "required": ["city"],
        },
    },
}
OTHER = {"type": "function", "function": {"name": "cancel", "parameters": {"type": "object"}}}
BODY = {"messages": [{"role": "user", "content": "Book it."}], "tools": [TOOL, OTHER]}
LETTER = "Dear passenger, we look forward to welcoming you on board of our train to the sea, which leaves at noon. "


def called(*calls: tuple[str, Any]) -> ModelAnswer:
    made = tuple(
        RawCall(name, arguments if isinstance(arguments, str) else json.dumps(arguments), f"call_{at}")
        for at, (name, arguments) in enumerate(calls)
    )
    return ModelAnswer(calls=made, finish="tool_calls")


def said(text: str, finish: str = "stop") -> ModelAnswer:
    return ModelAnswer(content=text, finish=finish)


PARIS = called(("book", {"city": "Paris", "seats": 2}))
SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"type": "object", "required": ["a"]}}}

CASES: dict[str, tuple[dict[str, Any], ModelAnswer, ModelAnswer, str | None]] = {
    "the same": ({}, PARIS, PARIS, None),
    "other spaces, and another id": ({}, PARIS, called(("book", '{"seats": 2,"city": " Paris "}')), None),
    "a default that is spelt out": (
        {},
        called(("book", {"city": "Rome"})),
        called(("book", {"city": "Rome", "seats": 1})),
        None,
    ),
    "calls in another order": (
        {},
        called(("book", {"city": "Rome"}), ("cancel", {})),
        called(("cancel", {}), ("book", {"city": "Rome"})),
        None,
    ),
    "other words": ({}, said("It is done."), said("I have booked your seats."), None),
    "another letter": (
        {},
        called(("book", {"city": "Rome", "note": LETTER})),
        called(("book", {"city": "Rome", "note": LETTER[::-1]})),
        None,
    ),
    "another number": (
        {},
        PARIS,
        called(("book", {"city": "Paris", "seats": 3})),
        "arguments: book.seats is 3 instead of 2",
    ),
    "true isn't 1": (
        {"tools": [OTHER]},
        called(("cancel", {"all": 1})),
        called(("cancel", {"all": True})),
        "arguments: cancel.all is true instead of 1",
    ),
    "another choice": (
        {},
        called(("book", {"city": "Rome", "class": "first"})),
        called(("book", {"city": "Rome", "class": "second"})),
        'arguments: book.class is "second" instead of "first"',
    ),
    "another item": (
        {},
        called(("book", {"city": "Rome", "stops": ["Pisa"]})),
        called(("book", {"city": "Rome", "stops": ["Siena"]})),
        'arguments: book.stops[0] is "Siena" instead of "Pisa"',
    ),
    "another tool": ({}, PARIS, called(("cancel", {})), "calls: cancel instead of book"),
    "a word for a call": ({}, PARIS, said("Where to?"), "finish: stop instead of tool_calls"),
    "a call for a word": ({}, said("Where to?"), PARIS, "finish: tool_calls instead of stop"),
    "arguments that break the schema": (
        {},
        PARIS,
        called(("book", {"city": 7})),
        "conform: book: 7 is not of type 'string'",
    ),
    "a tool that isn't there": ({}, PARIS, called(("fly", {})), "conform: unknown_tool: fly"),
    "cut off": ({}, said("It is done."), said("It", "length"), "conform: truncated: max_tokens was reached"),
    "cut off as the recorded one was": ({}, said("It", "length"), said("It is", "length"), None),
    "not cut off, though the recorded one was": ({}, said("It", "length"), said("It is done."), None),
    "nothing": ({}, said("It is done."), said(" "), "conform: neither a call nor a word"),
    "no call where one must be": (
        {"tool_choice": "required"},
        PARIS,
        said("Where to?"),
        "conform: no call, though tool_choice is required",
    ),
    "not the named tool": (
        {"tool_choice": {"type": "function", "function": {"name": "book"}}},
        PARIS,
        called(("cancel", {})),
        "conform: cancel, though tool_choice is book",
    ),
    "a call where none may be": (
        {"tool_choice": "none"},
        said("No."),
        PARIS,
        "conform: calls, though tool_choice is none",
    ),
    "two calls where one may be": (
        {"parallel_tool_calls": False},
        PARIS,
        called(("cancel", {}), ("cancel", {})),
        "conform: 2 calls, though parallel_tool_calls is false",
    ),
    "no JSON": (
        {"response_format": {"type": "json_object"}},
        said("{}"),
        said("yes"),
        "conform: response_format: not JSON: Expecting value: line 1 column 1 (char 0)",
    ),
    "other JSON that conforms": ({"response_format": SCHEMA}, said('{"a": 1}'), said('{"a": 2}'), None),
    "JSON that doesn't conform": (
        {"response_format": SCHEMA},
        said('{"a": 1}'),
        said('{"b": 2}'),
        "conform: response_format: 'a' is a required property",
    ),
    "the recorded answer was wrong itself": ({}, called(("book", {"city": 7})), said("Where to?"), None),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_right_or_wrong(case: tuple[dict[str, Any], ModelAnswer, ModelAnswer, str | None]) -> None:
    more, reference, given, expected = case
    found = fault(Asked(1, {**BODY, **more}, reference), given)
    assert (f"{found.step}: {found.detail}" if found else None) == expected


# How often it decides rightly

RIGHT, WRONG = PARIS, called(("book", {"city": "Rome"}))
FAULT = Fault("arguments", "book.city")


def week(chance: random.Random, requests: int, noise: float, spoiled: float) -> Decision:
    """The model answers 85 % as recorded; noise: of answers that come out otherwise; spoiled: of good ones, besides."""

    def answer(right: bool, worse: float) -> Fault | None:
        if chance.random() < noise:
            right = not right
        return None if right and chance.random() >= worse else FAULT

    rights = [chance.random() < 0.85 for _ in range(requests)]
    return decided([(answer(right, 0.0), answer(right, spoiled)) for right in rights])


@pytest.mark.parametrize(("requests", "noise"), [(300, 0.0), (700, 0.03), (1000, 0.05)])
def test_worse_by_five_points_is_stopped_and_the_same_is_promoted(requests: int, noise: float) -> None:
    """19 of 20 times each. Spoiling 5 of 85 right answers in a hundred makes 5 points."""
    chance, rounds = random.Random(f"{requests} {noise}"), 200
    same = Counter(week(chance, requests, noise, 0.0).outcome for _ in range(rounds))
    worse = Counter(week(chance, requests, noise, 0.05 / 0.85 / (1 - 2 * noise)).outcome for _ in range(rounds))
    assert same["promote"] >= 0.95 * rounds, same
    assert worse["promote"] <= 0.05 * rounds, worse
    assert worse["worse"] > worse["too few"]


@pytest.mark.parametrize("requests", [20, 60, 120, 180])
def test_too_few_promote_nothing(requests: int) -> None:
    chance = random.Random(requests)
    outcomes = Counter(week(chance, requests, 0.01, spoiled).outcome for spoiled in (0.0, 0.06) for _ in range(50))
    assert outcomes["promote"] == 0
    assert decide([]).outcome == "too few"


def test_how_many_it_takes() -> None:
    """The table of docs/model-test.md."""
    assert [needed(flips) for flips in (0.0, 0.05, 0.051, 0.1, 0.15)] == [209, 209, 284, 521, 800]
    shown = re.findall(
        r"^\| (?:up to )?(\d+) % \| (\d+) \|$", (ROOT / "docs/model-test.md").read_text("utf-8"), re.MULTILINE
    )
    assert len(shown) == 4
    for percent, requests in shown:
        n = int(requests)
        for size, outcome in ((n - 1, "too few"), (n, "promote")):
            won = round(size * int(percent) / 200)
            lost = round(size * int(percent) / 100) - won
            assert decided(changed(size, lost, won)).outcome == outcome, (percent, size)


def changed(requests: int, lost: int, won: int) -> list[tuple[Fault | None, Fault | None]]:
    same: tuple[None, None] = (None, None)
    return [*[(None, FAULT)] * lost, *[(FAULT, None)] * won, *[same] * (requests - lost - won)]


@pytest.mark.some(3)
@pytest.mark.parametrize("flips", [0.05, 0.055, 0.06, 0.07, 0.09])
@pytest.mark.parametrize("requests", [209, 215, 250, 300, 350])
def test_a_true_drop_of_five_points_is_promoted_once_in_twenty_times_at_most(requests: int, flips: float) -> None:
    """Exact, over how many answers change and how many of these for the worse."""
    promoted = 0.0
    for count in range(requests + 1):
        if (among := chance_of(count, requests, flips)) < 1e-6:
            continue
        for lost in range(count + 1):
            if (chance := among * chance_of(lost, count, (flips + 0.05) / (2 * flips))) > 1e-6:
                promoted += chance * (decided(changed(requests, lost, count - lost)).outcome == "promote")
    assert promoted <= 0.05


def chance_of(k: int, n: int, p: float) -> float:
    p = min(1.0, p)
    return math.comb(n, k) * p**k * (1 - p) ** (n - k)


def test_a_broken_connection_says_nothing_and_a_refusal_does() -> None:
    asked = Asked(1, BODY, RIGHT)
    good = [Pair(asked, RIGHT, RIGHT)] * 300
    assert decide([*good, *[Pair(asked, RIGHT, None)] * 5]).outcome == "promote"
    assert decide([*good, *[Pair(asked, RIGHT, None)] * 10]).outcome == "unanswered"
    made = decide([*good, *[Pair(asked, RIGHT, Fault("unanswered", "HTTP 400"))] * 20])
    assert made.outcome == "worse"
    assert [test.regression for test in made.tests] == [True, True]


def test_the_worst_comes_first() -> None:
    asked = Asked(1, BODY, RIGHT)
    answers = [WRONG, called(("cancel", {})), called(("fly", {})), RIGHT]
    found = decide([Pair(asked, RIGHT, answer) for answer in answers]).differences
    assert [difference.fault.step for difference in found] == ["conform", "calls", "arguments"]

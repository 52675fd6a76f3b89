"""Tests whether a candidate answers recorded requests worse than the current model. Pure.

The recorded answer is the reference for both: the current model is asked again, so that chance counts against both
alike. An answer is right if it conforms to its request, and calls what the reference calls.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from gateway.features.evaluation.model_test import stats
from gateway.features.evaluation.model_test.answers import ModelAnswer, RawCall, read_json
from gateway.features.evaluation.model_test.cases import Json
from gateway.features.evaluation.model_test.compare import Rules, Test, paired
from gateway.features.evaluation.model_test.judge import formal_fault, schema_fault

DROP, SURE = 0.05, 0.95
"""How often, at least, a candidate that is worse by this share is stopped."""
RULES = Rules(margin=1.0)
MAX_UNANSWERED = 0.02
"""The share of requests without an answer above which there is no verdict."""
MANY = 0.3
"""The share of changes up to which `needed` is exact."""
Z90 = 1.2816
"""A share of changes counts as the upper end of its interval of so many deviations: by chance it is low just where a
drop stays unseen."""
LONG = 80
"""A free text with more characters only has to be present: no two models write the same letter."""

Step = Literal["unanswered", "conform", "finish", "calls", "arguments"]
STEPS: tuple[Step, ...] = ("unanswered", "conform", "finish", "calls", "arguments")
"""The steps at which an answer can be wrong, the worst first."""


@dataclass(frozen=True)
class Asked:
    """A recorded request with its answer. number: the gateway's, for `ctxgate replay`."""

    number: int
    body: Json
    reference: ModelAnswer

    @property
    def tools(self) -> dict[str, Json]:
        found = {}
        for tool in self.body.get("tools") or ():
            function = tool.get("function") or {}
            found[function.get("name", "")] = function.get("parameters") or {}
        return found


@dataclass(frozen=True)
class Fault:
    step: Step
    detail: str


Faults = tuple[Fault | None, Fault | None]
"""Of the current model's answer and the candidate's to one request; None: right."""


@dataclass(frozen=True)
class Pair:
    """One request, answered by both; None: no answer, which says nothing about the model."""

    asked: Asked
    current: ModelAnswer | Fault | None
    candidate: ModelAnswer | Fault | None


@dataclass(frozen=True)
class Difference:
    """A request that the current model answers right, and the candidate wrong."""

    pair: Pair
    fault: Fault


@dataclass(frozen=True)
class Decision:
    """pairs: requests with two answers. needed: how many it takes to promote, with as many changes as these show."""

    outcome: Literal["promote", "worse", "too few", "unanswered"]
    pairs: int
    needed: int
    unanswered: int
    tests: tuple[Test, ...] = ()
    differences: tuple[Difference, ...] = ()


def decide(pairs: Sequence[Pair]) -> Decision:
    answered = [pair for pair in pairs if pair.current is not None and pair.candidate is not None]
    faults = [(fault(pair.asked, pair.current), fault(pair.asked, pair.candidate)) for pair in answered]
    made = decided(faults, len(pairs) - len(answered))
    worse = [
        Difference(pair, after) for pair, (before, after) in zip(answered, faults, strict=True) if after and not before
    ]
    worse.sort(key=lambda each: (STEPS.index(each.fault.step), -each.pair.asked.number))
    return replace(made, differences=tuple(worse))


def decided(faults: Sequence[Faults], unanswered: int = 0) -> Decision:
    """Promotes only what the requests suffice to tell from a candidate that is worse by DROP."""
    count = len(faults)
    if unanswered > MAX_UNANSWERED * (count + unanswered):
        return Decision("unanswered", count, needed(DROP), unanswered)
    if not faults:
        return Decision("too few", 0, needed(DROP), unanswered)
    tests = tests_of(faults)
    if any(test.regression for test in tests):
        return Decision("worse", count, needed(DROP), unanswered, tests)
    changes = tests[0].lost + tests[0].won
    if count >= (enough := _cautious(changes, count)):
        return Decision("promote", count, enough, unanswered, tests)
    # Of more requests with this share of changes, the share is known better.
    told = needed(changes / count)
    while told < (more := _cautious(round(changes * told / count), told)):
        told = more
    return Decision("too few", count, max(told, count + 1), unanswered, tests)


def _cautious(changes: int, count: int) -> int:
    return needed(stats.wilson(changes, count, Z90)[1])


def tests_of(faults: Sequence[Faults]) -> tuple[Test, ...]:
    """The paired tests that decide, Holm-adjusted: right in all, and conforming."""
    rows: Mapping[str, tuple[Json, Json]] = {
        str(at): ({"fault": before}, {"fault": after}) for at, (before, after) in enumerate(faults)
    }
    tests = [
        paired("right", rows, lambda row: row["fault"] is None, RULES),
        paired("conforming", rows, lambda row: row["fault"] is None or row["fault"].step in STEPS[2:], RULES),
    ]
    adjusted = stats.holm({test.name: test.p_worse for test in tests})
    return tuple(
        replace(
            test,
            p_worse=adjusted[test.name],
            regression=adjusted[test.name] < RULES.alpha and -test.difference >= RULES.margin,
        )
        for test in tests
    )


def needed(flips: float) -> int:
    """Requests of which a drop of DROP shows with the chance SURE, if this share of them changes either way."""
    # Beyond, the number grows with the share, and would take long to find exactly.
    return math.ceil(_needed(max(DROP, min(MANY, math.ceil(round(100 * flips, 6)) / 100))) * max(1.0, flips / MANY))


@cache
def _needed(flips: float) -> int:
    low, high = 50, 100
    while stats.power(high, DROP, flips, RULES.alpha / 2) < SURE:
        low, high = high, 2 * high
    while high - low > 5:
        middle = (low + high) // 2
        low, high = (low, middle) if stats.power(middle, DROP, flips, RULES.alpha / 2) >= SURE else (middle, high)
    return high


# One answer


def fault(asked: Asked, answer: ModelAnswer | Fault | None) -> Fault | None:
    """The fault of the answer; None: it conforms, and does what the reference does."""
    if answer is None or isinstance(answer, Fault):
        return answer
    if found := nonconforming(asked, answer):
        return Fault("conform", found)
    if asked.reference.finish == "length" or nonconforming(asked, asked.reference):
        return None  # the reference shows nothing of what is right
    if answer.finish != asked.reference.finish:
        return Fault("finish", f"{answer.finish} instead of {asked.reference.finish}")
    wanted, given = (sorted(each.calls, key=_order) for each in (asked.reference, answer))
    names = [call.name for call in wanted], [call.name for call in given]
    if names[0] != names[1]:
        return Fault("calls", f"{', '.join(names[1]) or 'none'} instead of {', '.join(names[0]) or 'none'}")
    for one, other in zip(wanted, given, strict=True):
        if found := _differing(asked.tools.get(one.name, {}), one.parsed(), other.parsed(), one.name):
            return Fault("arguments", found)
    return None


def nonconforming(asked: Asked, answer: ModelAnswer) -> str | None:
    """Which constraint of the request the answer violates: the tools' schemas, tool_choice, response_format."""
    tools = asked.tools
    formal = formal_fault(answer, tools)
    # Where the recorded answer ran into max_tokens, too, the request is to blame.
    if formal is not None:
        return None if formal[0] == "truncated" and asked.reference.finish == "length" else ": ".join(formal)
    for call in answer.calls:
        if found := schema_fault(tools.get(call.name, {}), call.parsed()):
            return f"{call.name}: {found}"
    if found := _breaks_choice(asked.body, answer):
        return found
    if not answer.calls and not answer.content.strip():
        return "neither a call nor a word"
    return _breaks_format(asked.body.get("response_format"), answer)


def _breaks_choice(body: Json, answer: ModelAnswer) -> str | None:
    choice, names = body.get("tool_choice"), [call.name for call in answer.calls]
    if choice == "none" and names:
        return "calls, though tool_choice is none"
    if choice == "required" and not names:
        return "no call, though tool_choice is required"
    if isinstance(choice, dict) and choice.get("type") == "function":
        wanted = (choice.get("function") or {}).get("name")
        if set(names) != {wanted}:
            return f"{', '.join(names) or 'no call'}, though tool_choice is {wanted}"
    if body.get("parallel_tool_calls") is False and len(names) > 1:
        return f"{len(names)} calls, though parallel_tool_calls is false"
    return None


def _breaks_format(wanted: Any, answer: ModelAnswer) -> str | None:
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if answer.calls or kind not in ("json_object", "json_schema"):
        return None
    try:
        value = read_json(answer.content)
    except ValueError as error:
        return f"response_format: not JSON: {error}"
    if kind == "json_object":
        return None if isinstance(value, dict) else "response_format: no object"
    schema = (wanted.get("json_schema") or {}).get("schema") or {}
    found = schema_fault(schema, value)
    return f"response_format: {found}" if found else None


def _order(call: RawCall) -> tuple[str, str]:
    return call.name, json.dumps(call.parsed(), sort_keys=True)


def _differing(schema: Any, wanted: Any, given: Any, at: str) -> str | None:
    """Where two values differ, as far as the schema makes them comparable."""
    schema = schema if isinstance(schema, dict) else {}
    if isinstance(wanted, dict) and isinstance(given, dict):
        properties = schema.get("properties") or {}
        for name in dict.fromkeys([*wanted, *given]):
            inner = properties.get(name) or {}
            missing = inner.get("default") if isinstance(inner, dict) else None
            one, other = wanted.get(name, missing), given.get(name, missing)
            if found := _differing(inner, one, other, f"{at}.{name}"):
                return found
        return None
    if isinstance(wanted, list) and isinstance(given, list) and len(wanted) == len(given):
        for index, (one, other) in enumerate(zip(wanted, given, strict=True)):
            if found := _differing(schema.get("items"), one, other, f"{at}[{index}]"):
                return found
        return None
    if _alike(schema, wanted, given):
        return None
    return f"{at} is {_short(given)} instead of {_short(wanted)}"


def _alike(schema: Json, wanted: Any, given: Any) -> bool:
    if isinstance(wanted, str) and isinstance(given, str) and "enum" not in schema and "const" not in schema:
        return len(wanted) > LONG < len(given) or wanted.split() == given.split()
    return bool(wanted == given) and isinstance(wanted, bool) == isinstance(given, bool)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONG else text[: LONG - 1] + "…"

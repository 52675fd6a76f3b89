"""Is the second model worse? One gate for runs and baselines; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from gateway.features.evaluation.model_test import stats
from gateway.features.evaluation.model_test.cases import Json

LOCALCOWORK = {"select": 90.0, "chain": 80.0, "abstain+missing-param": 85.0}
"""The thresholds of LocalCowork's /model-test: tool selection, chains, edge cases."""

SMALLEST_CATEGORY = 30
SLOWER = 1.25


class NotComparable(Exception):
    """The two runs had different settings or rules; each line names one difference."""


@dataclass(frozen=True)
class Rules:
    alpha: float = 0.05
    margin: float = 2.0
    """Points: a smaller drop isn't a regression, however certain."""
    noninferiority: float | None = None
    """Points: fail unless the interval of the overall difference stays above minus this."""
    minimum: Mapping[str, float] = field(default_factory=dict)
    """Percent by category, several joined by +; `overall` for all."""
    gate_latency: bool = False
    allow_mismatch: bool = False


@dataclass(frozen=True)
class Test:
    """One question put to the pairs. Rates in percent; difference and interval in points, candidate less baseline."""

    name: str
    n: int
    baseline: float
    candidate: float
    lost: int
    won: int
    difference: float
    low: float
    high: float
    p_worse: float
    p_either: float
    """p_worse is one-sided and what decides, Holm-adjusted among categories; p_either is two-sided."""
    regression: bool


@dataclass(frozen=True)
class Gate:
    verdict: Literal["regression", "no regression shown", "no baseline"]
    reasons: tuple[str, ...]
    """Why it fails the gate; empty if it passes."""
    tests: tuple[Test, ...] = ()
    pairs: int = 0
    dropped: int = 0
    """Cases without a pair: not in both, or without an answer in one."""
    lost: tuple[str, ...] = ()
    won: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    """What differs between the two besides the answers."""
    latency: Json | None = None
    sees: str = ""
    """The smallest drop that this many pairs could have shown."""

    @property
    def passed(self) -> bool:
        return not self.reasons

    def plain(self) -> Json:
        return {**asdict(self), "passed": self.passed}


def mismatches(baseline: Json, candidate: Json) -> list[str]:
    """Why the two can't be compared."""
    found = []
    for key in ("format", "checker"):
        if baseline.get(key) != candidate.get(key):
            found.append(f"{key}: {baseline.get(key)} and {candidate.get(key)}")
    before, now = baseline.get("request", {}), candidate.get("request", {})
    for key in sorted({*before, *now}):
        if before.get(key) != now.get(key):
            found.append(f"request.{key}: {before.get(key)!r} and {now.get(key)!r}")
    common = baseline["cases"].keys() & candidate["cases"].keys()
    if not common:
        found.append(f"no case in common: {baseline['suite']['id']} and {candidate['suite']['id']}")
    if changed := [id for id in sorted(common) if baseline["cases"][id]["h"] != candidate["cases"][id]["h"]]:
        found.append(f"{len(changed)} cases were changed since: {', '.join(changed[:5])}")
    return found


def compare(baseline: Json, candidate: Json, rules: Rules) -> Gate:
    """Raises NotComparable, unless mismatches are allowed: then differences are left out or reported."""
    wrong = mismatches(baseline, candidate)
    if wrong and not rules.allow_mismatch:
        raise NotComparable("\n".join(wrong))
    before, now = baseline["cases"], candidate["cases"]
    pairs = {
        id: (before[id], now[id])
        for id in now
        if id in before and before[id]["h"] == now[id]["h"] and before[id]["s"] in "PF" and now[id]["s"] in "PF"
    }
    if not pairs:
        raise NotComparable("no case has an answer in both")
    tests = _tests(pairs, candidate.get("gated", ()), rules)
    overall = tests[0]
    reasons = [
        f"{test.name}: {test.baseline:.1f} % → {test.candidate:.1f} %, {-test.difference:.1f} points worse "
        f"(p = {test.p_worse:.3g})"
        for test in tests
        if test.regression
    ]
    broken = [id for id, (old, new) in pairs.items() if new.get("m") and new["s"] == "F" and old["s"] == "P"]
    if broken:
        reasons.append(f"must pass, and did before: {', '.join(broken)}")
    if rules.noninferiority is not None and overall.low <= -rules.noninferiority:
        reasons.append(
            f"not shown to be at most {rules.noninferiority:g} points worse: the interval begins at {overall.low:+.1f}"
        )
    reasons += missed(candidate, rules.minimum)
    latency = _latency(pairs, baseline, candidate)
    if rules.gate_latency and latency and latency["slower"]:
        reasons.append(f"slower: {latency['ratio']:.2f} times the baseline's time")
    return Gate(
        verdict="regression" if reasons else "no regression shown",
        reasons=tuple(reasons),
        tests=tests,
        pairs=len(pairs),
        dropped=len(before.keys() | now.keys()) - len(pairs),
        lost=tuple(id for id, (old, new) in pairs.items() if (old["s"], new["s"]) == ("P", "F")),
        won=tuple(id for id, (old, new) in pairs.items() if (old["s"], new["s"]) == ("F", "P")),
        changed=(*wrong, *_changed(baseline, candidate)),
        latency=latency,
        sees=_sees(len(pairs), rules.alpha),
    )


def alone(candidate: Json, rules: Rules) -> Gate:
    """Without a baseline, only absolute conditions can fail."""
    broken = [id for id, case in candidate["cases"].items() if case.get("m") and case["s"] == "F"]
    reasons = [f"must pass: {', '.join(broken)}"] if broken else []
    return Gate(verdict="no baseline", reasons=(*reasons, *missed(candidate, rules.minimum)))


def missed(result: Json, minimum: Mapping[str, float]) -> list[str]:
    """The missed targets, including those of categories that weren't run."""
    found = []
    for name, percent in minimum.items():
        shares = [result["summary"].get(part, {"k": 0, "n": 0}) for part in name.split("+")]
        k, n = sum(share["k"] for share in shares), sum(share["n"] for share in shares)
        if n == 0:
            found.append(f"target {name} ≥ {percent:g} %: no such cases were asked")
        elif 100 * k / n < percent:
            found.append(f"target {name} ≥ {percent:g} %: {k}/{n} = {100 * k / n:.1f} %")
    return found


Pairs = Mapping[str, tuple[Json, Json]]


def _tests(pairs: Pairs, gated: Sequence[str], rules: Rules) -> tuple[Test, ...]:
    tests = [
        paired("overall", pairs, lambda case: case["s"] == "P", rules),
        paired("format", pairs, lambda case: bool(case["v"]), rules),
    ]
    if balanced := _balanced(pairs, rules):
        tests.append(balanced)
    categories = []
    for category in gated:
        chosen = {id: pair for id, pair in pairs.items() if pair[1]["c"] == category}
        if len(chosen) >= SMALLEST_CATEGORY:
            categories.append(paired(category, chosen, lambda case: case["s"] == "P", rules))
    adjusted = stats.holm({test.name: test.p_worse for test in categories})
    for test in categories:
        p = adjusted[test.name]
        worse = p < rules.alpha and -test.difference >= rules.margin
        tests.append(Test(**{**vars(test), "p_worse": p, "regression": worse}))
    return tuple(tests)


def paired(name: str, pairs: Pairs, good: Callable[[Json], bool], rules: Rules) -> Test:
    outcomes = [(good(old), good(new)) for old, new in pairs.values()]
    n, lost, won = len(outcomes), outcomes.count((True, False)), outcomes.count((False, True))
    both = outcomes.count((True, True))
    low, high = stats.newcombe_paired(both, won, lost, n - both - won - lost)
    p = stats.mcnemar_worse(lost, won)
    return Test(
        name=name,
        n=n,
        baseline=100 * (both + lost) / n,
        candidate=100 * (both + won) / n,
        lost=lost,
        won=won,
        difference=100 * (won - lost) / n,
        low=100 * low,
        high=100 * high,
        p_worse=p,
        p_either=stats.mcnemar(lost, won),
        regression=p < rules.alpha and 100 * (lost - won) / n >= rules.margin,
    )


def _balanced(pairs: Pairs, rules: Rules) -> Test | None:
    """The mean of specificity and call-recall: to call always, or never, is 50 %."""
    groups = []
    for call in (0, 1):
        chosen = {id: pair for id, pair in pairs.items() if all(case.get("call") == call for case in pair)}
        if not chosen:
            return None
        groups.append(paired("", chosen, lambda case: bool(case["d"]), rules))
    quiet, calls = groups
    p = stats.balanced_worse((quiet.lost, quiet.won, quiet.n), (calls.lost, calls.won, calls.n))
    better = stats.balanced_worse((quiet.won, quiet.lost, quiet.n), (calls.won, calls.lost, calls.n))
    difference = (quiet.difference + calls.difference) / 2
    return Test(
        name="abstention",
        n=quiet.n + calls.n,
        baseline=(quiet.baseline + calls.baseline) / 2,
        candidate=(quiet.candidate + calls.candidate) / 2,
        lost=quiet.lost + calls.lost,
        won=quiet.won + calls.won,
        difference=difference,
        # Two independent halves: their distances from the middle add as squares (Zou and Donner).
        low=difference - _half(quiet.difference - quiet.low, calls.difference - calls.low),
        high=difference + _half(quiet.high - quiet.difference, calls.high - calls.difference),
        p_worse=p,
        p_either=min(1.0, 2 * min(p, better)),
        regression=p < rules.alpha and -difference >= rules.margin,
    )


def _half(one: float, other: float) -> float:
    return float((one * one + other * other) ** 0.5) / 2


def _latency(pairs: Pairs, baseline: Json, candidate: Json) -> Json | None:
    """Only between runs on one machine."""
    if baseline.get("host") != candidate.get("host"):
        return None
    ratios = [new["ms"] / old["ms"] for old, new in pairs.values() if old.get("ms") and new.get("ms")]
    if not ratios:
        return None
    ratio, (low, high) = stats.bootstrap_ratio(ratios)
    return {"ratio": ratio, "low": low, "high": high, "n": len(ratios), "slower": low > 1 and ratio > SLOWER}


def _changed(baseline: Json, candidate: Json) -> list[str]:
    found: list[str] = []
    for part in ("target", "host"):
        before: dict[str, Any] = baseline.get(part) or {}
        now: dict[str, Any] = candidate.get(part) or {}
        found += [
            f"{part}.{key}: {before.get(key)} → {now.get(key)}"
            for key in sorted({*before, *now})
            if before.get(key) != now.get(key)
        ]
    return found


def _sees(n: int, alpha: float) -> str:
    small, large = (100 * stats.power(n, drop, flips, alpha) for drop, flips in ((0.05, 0.10), (0.10, 0.16)))
    return f"with {n} pairs a true drop of 5 points is seen {small:.0f} % of the time, one of 10 points {large:.0f} %"

"""Checks that the judge distinguishes right from wrong, without an endpoint: benchmarks err most in scoring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.features.evaluation.model_test import oracle, stats
from gateway.features.evaluation.model_test.answers import ModelAnswer
from gateway.features.evaluation.model_test.cases import Case, Suite
from gateway.features.evaluation.model_test.run import verdict_of

VECTORS: tuple[tuple[str, float, float], ...] = (
    ("Wilson 9/10, low", stats.wilson(9, 10)[0], 0.5958),
    ("Wilson 9/10, high", stats.wilson(9, 10)[1], 0.9821),
    ("Wilson 0/10, high", stats.wilson(0, 10)[1], 0.2775),
    ("Wilson 360/400, low", stats.wilson(360, 400)[0], 0.8667),
    ("McNemar 10, 2", stats.mcnemar(10, 2), 0.03857),
    ("McNemar 8, 2", stats.mcnemar(8, 2), 0.10938),
    ("McNemar 3, 3", stats.mcnemar(3, 3), 1.0),
    ("fewest lost of 3 won", stats.smallest_loss(3), 10),
    ("Newcombe 36/12/2/0, low", stats.newcombe_paired(36, 12, 2, 0)[0], 0.0569),
    ("Newcombe 36/12/2/0, high", stats.newcombe_paired(36, 12, 2, 0)[1], 0.3404),
)
"""Computed statistics, and the values published or computed elsewhere."""


@dataclass
class Report:
    suite: str
    cases: int
    right: int = 0
    mutants: int = 0
    caught: int = 0
    never: float | None = None
    always: float | None = None
    """Balanced accuracy of the two models that don't read the question: 0.5 each."""
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.suite}: {self.right} of {self.cases} right answers pass"]
        if self.mutants:
            lines.append(f"{self.mutants - self.caught} of {self.mutants} wrong ones do")
        if self.never is not None and self.always is not None:
            lines.append(f"never calling {100 * self.never:.1f} %, always {100 * self.always:.1f} % balanced")
        return "; ".join(lines) + "".join(f"\n  {problem}" for problem in self.wrong[:20])


def statistics() -> list[str]:
    """The statistics that differ from their expected values."""
    return [f"{name}: {got:.5f}, not {want}" for name, got, want in VECTORS if abs(got - want) > 6e-5]


def suite(chosen: Suite) -> Report:
    report = Report(chosen.id, len(chosen.cases))
    for case in chosen.cases:
        _case(case, report)
    report.never = _balanced(chosen, lambda case: oracle.never())
    report.always = _balanced(chosen, oracle.always)
    if (report.never, report.always) != (0.5, 0.5) and None not in (report.never, report.always):
        report.wrong.append("the models that don't read the question aren't at 50 %")
    return report


def _case(case: Case, report: Report) -> None:
    passed = True
    for number, step in enumerate(case.steps):
        right = _right(case, number)
        if not verdict_of(case, number, right, ()).passed:
            passed = False
            report.wrong.append(f"{case.id}: the right answer fails: {verdict_of(case, number, right, ())}")
        mutants = oracle.mutants(case, step) if case.checker == "core" else _bfcl_mutants(case)
        for name, answer in mutants:
            report.mutants += 1
            if verdict_of(case, number, answer, ()).passed:
                report.wrong.append(f"{case.id}: {name} passes")
            else:
                report.caught += 1
    report.right += passed


def _right(case: Case, number: int) -> ModelAnswer:
    if case.checker == "bfcl":
        from gateway.features.evaluation.model_test import bfcl

        return bfcl.oracle(case)
    return oracle.answer(case, case.steps[number])


def _bfcl_mutants(case: Case) -> list[tuple[str, ModelAnswer]]:
    from gateway.features.evaluation.model_test import bfcl

    return bfcl.mutants(case)


def _balanced(chosen: Suite, model: Callable[[Case], ModelAnswer]) -> float | None:
    """The mean of the shares of right decisions where calls are due and where they aren't."""
    decided: dict[bool, list[bool]] = {True: [], False: []}
    for case in chosen.cases:
        if case.must_call is not None and case.tools:
            verdict = verdict_of(case, 0, model(case), ())
            decided[case.must_call].append(bool(verdict.decided))
    if not all(decided.values()):
        return None
    return sum(sum(group) / len(group) for group in decided.values()) / 2

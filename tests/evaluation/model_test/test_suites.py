"""Every case of the suites: the right answer scores, each answer that is wrong in one way doesn't."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from gateway.features.evaluation.model_test import CHECKER, oracle, results
from gateway.features.evaluation.model_test.cases import SUITES, BadSuite, Case, choose, load, picks
from gateway.features.evaluation.model_test.commands import BASELINES
from gateway.features.evaluation.model_test.judge import judge

CORE = load(SUITES / "core")

WEIGHTS = {
    "ctxgate-test-tools": "29cf157cf9009b15a671f656d641b7bfe28771d893a148baba107b1f6bdb6e4c",
    "smollm2-135m-instruct": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
}

CATEGORIES = {
    *("single", "select", "many-tools", "parallel-same", "parallel-mixed", "abstain", "missing-param", "optional"),
    *("nested", "types", "strings", "names", "chain", "error-recovery", "no-retool", "tool_choice", "long-context"),
    *("stream-parity", "injection"),
}


def test_sizes() -> None:
    sizes = Counter(case.category for case in CORE.cases)
    assert set(sizes) == CATEGORIES
    assert len(CORE.cases) >= 200
    assert min(sizes[category] for category in CORE.gated) >= 30
    assert min(sizes.values()) >= 8
    assert len(picks(SUITES / "core")) == 20
    assert max(len(case.tools) for case in CORE.cases) >= 60
    assert {len(case.tools) for case in CORE.cases if case.category == "select"} == {12}


def test_hashes_tell_cases_apart() -> None:
    assert len({case.hash for case in CORE.cases}) == len(CORE.cases)
    assert load(SUITES / "core").sha256 == CORE.sha256


@pytest.mark.parametrize("case", CORE.cases, ids=lambda case: case.id)
def test_the_judge(case: Case) -> None:
    for step in case.steps:
        right = judge(case, step, oracle.answer(case, step))
        assert right.passed, right
        assert right.folded
        assert right.well_formed
        for name, answer in oracle.mutants(case, step):
            verdict = judge(case, step, answer)
            assert not verdict.passed, f"{name} passes: {answer}"


def test_a_smaller_choice_is_part_of_a_larger() -> None:
    chosen = [{case.id for case in choose(CORE.cases, limit)} for limit in (10, 50, 100, None)]
    assert chosen[0] < chosen[1] < chosen[2] < chosen[3]
    assert len(chosen[1]) == 50
    assert {case.id for case in choose(CORE.cases, 50, seed=1)} != chosen[1]


TOOLS = "f: {does: Anything., takes: {a: integer, b?: string}}\n"


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("{id: x, tools: [f], user: u, calls: [{g: {}}]}", "g is wanted and not among the tools"),
        ("{id: x, tools: [f], user: u, calls: [{f: {c: 1}}]}", "f has no parameter c"),
        ("{id: x, tools: [f], user: u, calls: [{f: {a: {$near: 1}}}]}", "no rule $near"),
        ("{id: x, tools: [f], user: u, calls: [{f: {a: {$regex: a}}}]}", "'$like'"),
        ("{id: x, tools: [h], user: u, calls: []}", "'h'"),
        ("{id: x, tools: [f], user: u, calls: [], colour: red}", "unknown keys: colour"),
        ("{id: x, tools: [f], user: u, calls: [], forbid: [g]}", "forbidden tools that aren't offered: g"),
        ("{id: x, tools: [f], messages: [{ghost: boo}], calls: []}", "a message is user"),
        ("{id: x, tools: [f], user: u}", "'calls'"),
    ],
)
def test_bad_cases_are_explained(tmp_path: Path, case: str, says: str) -> None:
    (tmp_path / "suite.yaml").write_text("{id: t, version: 1}", "utf-8")
    (tmp_path / "tools.yaml").write_text(TOOLS, "utf-8")
    (tmp_path / "a.yaml").write_text(f"category: c\ncases: [{case}]", "utf-8")
    with pytest.raises(BadSuite, match=r"a\.yaml: case x") as caught:
        load(tmp_path)
    assert says in str(caught.value)


@pytest.mark.parametrize("file", sorted(BASELINES.glob("*.json")), ids=lambda file: file.stem)
def test_committed_baselines_fit_the_cases(file: Path) -> None:
    """Where this fails a case, or the judge, was changed: run the suite again with `--save-baseline`."""
    kept = results.read(file)
    known = {case.id: case.hash[:16] for case in CORE.cases}
    assert {id: case["h"] for id, case in kept["cases"].items()} == {id: known[id] for id in kept["cases"]}
    assert kept["checker"] == CHECKER
    assert kept["target"]["file_sha256"] == WEIGHTS[kept["target"]["model"]]
    assert kept["summary"] == results.summary(kept["cases"])

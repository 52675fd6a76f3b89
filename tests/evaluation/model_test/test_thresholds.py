"""What every threshold would pass, told from two runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.features.evaluation.commands.model_test import main
from gateway.features.evaluation.model_test.commands import suites
from gateway.features.evaluation.model_test.thresholds import ROWS, Curve, Decision, Step, curve, decisions, rows

SOME = (
    Decision(0.9, True, call=True, words=False),
    Decision(0.4, True, call=True, words=False),
    Decision(0.4, False, call=False, words=True),
    Decision(0.1, False, call=False, words=True),
    Decision(0.1, None, call=True, words=True),
    Decision(None, True, call=True, words=True),
)

DECISIONS = st.lists(
    st.builds(
        Decision, st.none() | st.floats(0, 1), st.none() | st.booleans(), call=st.booleans(), words=st.booleans()
    ),
    max_size=30,
)


def test_each_threshold_has_its_figures() -> None:
    found = curve(SOME)
    assert (found.asked, found.due, found.quiet) == (6, 2, 2)
    assert found.steps == (
        Step(0.0, 4, 2, 2),
        Step(0.1, 4, 2, 2),
        Step(0.4, 5, 2, 1),
        Step(0.9, 5, 1, 0),
        Step(1.0, 4, 0, 0),
    )
    assert found.best.passed == 5
    assert ("*", "0.900", "5 of 6", "1 of 2", "0 of 2") in rows(found)


@given(DECISIONS)
def test_the_ends_are_the_two_runs(found: list[Decision]) -> None:
    made = curve(found)
    assert made.steps[0].passed == sum(one.words if one.probability is None else one.call for one in found)
    assert made.steps[0].due + made.steps[0].needless == made.due + made.quiet
    assert [step.threshold for step in made.steps] == sorted({step.threshold for step in made.steps})
    assert all(step.passed <= made.best.passed for step in made.steps)
    for before, after in zip(made.steps, made.steps[1:], strict=False):
        assert before.due >= after.due
        assert before.needless >= after.needless
    assert made.best in made.shown()
    assert len(made.shown()) <= ROWS + 1


def test_cases_without_an_answer_do_not_count() -> None:
    cases = suites(["smoke"]).cases[:3]

    def sample(at: int, status: str, probability: float | None = None) -> dict[str, Any]:
        return {"case": cases[at].id, "status": status, "answers": [{"call_probability": probability}]}

    calls = [sample(0, "pass", 0.3), sample(0, "fail", 0.3), sample(1, "error"), sample(2, "pass")]
    words = [sample(0, "pass"), sample(1, "pass"), sample(2, "fail")]
    assert decisions(cases, calls, words) == [
        Decision(0.3, cases[0].must_call, call=False, words=True),
        Decision(None, cases[2].must_call, call=True, words=False),
    ]
    assert curve([]) == Curve((Step(0.0, 0, 0, 0), Step(1.0, 0, 0, 0)), 0, 0, 0)


def options(folder: Path, weights: Path, format: str) -> list[str]:
    file = folder / "config.yaml"
    model = {"runtime": "llama.cpp", "path": str(weights), "context_window": 4096, "tool_call_format": format}
    file.write_text(json.dumps({"active_model": "m", "models": {"m": model}, "state_dir": str(folder / "state")}))
    args = ["--thresholds", "--serve", "--config", str(file), "--suite", "smoke", "--max-tokens", "200"]
    return [*args, "--quiet", "--out", str(folder / "out")]


def test_the_test_model(tmp_path: Path, test_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(options(tmp_path, test_model, "auto")) == 0
    shown = capsys.readouterr().out
    assert re.search(r"\n\* +[01]\.\d{3} +\d+ of 20 +\d+ of \d+ +\d+ of \d+\n", shown), shown
    assert (tmp_path / "out/thresholds.png").stat().st_size > 10_000
    first = json.loads((tmp_path / "out/calls/samples.jsonl").read_text().splitlines()[1])
    assert 0 <= first["answers"][0]["call_probability"] <= 1


def test_a_model_whose_engine_reads_its_calls(
    tmp_path: Path, test_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = options(tmp_path, test_model, "native_json")
    assert main([*args, "--limit", "2"]) == 2
    assert "can't hold an answer to a call_threshold: the engine reads its calls" in capsys.readouterr().err


def test_a_server_that_tells_no_probability(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--thresholds", "--fake", "oracle", "--suite", "smoke", "--quiet", "--out", str(tmp_path)]
    assert main(args) == 2
    assert "only ctxgate does" in capsys.readouterr().err

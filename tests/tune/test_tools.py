"""`ctxgate tune --tools`: the ways of showing tools, and with the real engine and the real test model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from gateway.config import load
from gateway.errors import ProviderInvalidRequest
from gateway.tune.tools import WAYS, Share, Showing, choose, note, read, ways
from tests.cli.commands import ctxgate
from tests.ports import free_port

FILE = """\
active_model: tiny
server: {{port: {port}}}
state_dir: {folder}/state
models:
  tiny:  # the small one
    runtime: llama.cpp
    path: {model}
    context_window: 1024
    tool_call_format: pythonic
    tool_prompt: {way}  # mine
  engine: {{runtime: llama.cpp, path: {model}}}
  vectors: {{runtime: llama.cpp, path: {model}, role: embedding}}
"""


def showing(way: str, passed: int, due: int, quiet: int) -> Showing:
    return Showing(way, Share(passed, 20), Share(due, 15), Share(quiet, 4), 60.0)


OWN = showing("template", 10, 12, 2)


@pytest.mark.parametrize(
    ("others", "chosen"),
    [
        pytest.param([], "template", id="nothing else"),
        pytest.param([showing("system", 10, 12, 2)], "template", id="the same"),
        pytest.param([showing("system", 12, 14, 1)], "system", id="gains more due calls than it loses"),
        pytest.param([showing("system", 12, 15, 0)], "system", id="more passed, more due, fewer quiet, one more in all"),
        pytest.param([showing("system", 12, 13, 0)], "template", id="loses more needless ones than it gains"),
        pytest.param([showing("system", 9, 15, 4)], "template", id="decides better, passes less"),
        pytest.param([showing("system", 11, 12, 2), showing("both", 12, 12, 2)], "both", id="the better of two"),
        pytest.param([showing("system", 10, 13, 2), showing("both", 10, 12, 2)], "system", id="decides better"),
    ],
)
def test_the_choice_is_worse_in_nothing(others: list[Showing], chosen: str) -> None:
    assert choose([OWN, *others]).way == chosen


@pytest.mark.parametrize("configured", ["auto", *WAYS])
def test_every_way_is_tried_the_model_s_own_first(configured: str) -> None:
    tried = ways(configured)
    assert sorted(tried) == sorted(WAYS)
    assert tried[0] == ("template" if configured == "auto" else configured)


def test_the_note_has_the_figures_of_all() -> None:
    chosen = showing("both", 12, 13, 3)
    assert note(chosen, [OWN, chosen], "smoke", "2026-11-25") == (
        "smoke 2026-11-25: passed 12 of 20, calls where due 13 of 15, quiet where due 3 of 4; template 10/12/2"
    )


@pytest.fixture
def file(test_model: Path, tmp_path: Path) -> Path:
    pytest.importorskip("xllamacpp")
    made = tmp_path / "config.yaml"
    made.write_text(FILE.format(model=test_model, folder=tmp_path, port=free_port(), way="system"), "utf-8")
    return made


def test_tries_all_ways_and_writes_the_best_one(file: Path) -> None:
    """The test model learnt its tools from the template; with our list in the system message it calls less."""
    before = file.read_text("utf-8")
    done = ctxgate("tune", "--config", file, "--tools", "--apply", cwd=file.parent)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if " of 20 " in line]
    rows = {next(word for word in line if word in WAYS): line for line in lines}
    assert list(rows) == ["system", "template", "both"], "the model's own first, and no tables of model-test"
    after = file.read_text("utf-8")
    chosen = yaml.safe_load(after)["models"]["tiny"]["tool_prompt"]
    assert chosen == next(way for way, row in rows.items() if row[0] == "*") != "system"
    assert load(file).models["tiny"].tool_prompt == chosen
    (line,) = [line for line in after.splitlines() if "tool_prompt" in line]
    assert line.startswith(f"    tool_prompt: {chosen}  # smoke 2")
    assert line.endswith("  # mine")
    assert " of 20, " in line
    assert [each for each in after.splitlines() if "tool_prompt" not in each] == [
        each for each in before.splitlines() if "tool_prompt" not in each
    ]
    assert [path.name for path in file.parent.glob(".tune*")] == []


@pytest.mark.parametrize(
    ("model", "says"), [("engine", "native_json"), ("vectors", "vectors")], ids=["the engine's own", "no chat"]
)
def test_refuses_what_the_gateway_does_not_decide(file: Path, model: str, says: str) -> None:
    done = ctxgate("tune", "--config", file, "--tools", model, cwd=file.parent)
    assert (done.returncode, says in done.stderr) == (ProviderInvalidRequest.exit_code, True)


def test_reads_the_results_of_model_test() -> None:
    results = {
        "summary": {"overall": {"k": 3, "n": 5}},
        "metrics": {"call_recall": {"k": 2, "n": 4}, "specificity": {"k": 1, "n": 1}},
        "cases": {"a": {"ms": 1500}, "b": {"ms": 500}, "c": {}},
    }
    assert read("both", json.loads(json.dumps(results))) == Showing("both", Share(3, 5), Share(2, 4), Share(1, 1), 2.0)

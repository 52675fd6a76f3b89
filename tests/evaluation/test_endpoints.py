"""`GET /-/evaluations/{id}`: the failed answers of a run, whatever characters they have."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

from gateway.app import build
from gateway.config import Config, Model
from tests.gateway.running import FAST
from tests.patience import PATIENCE
from tests.provider.server import serve

BREAKS = "one\u2028two\x0cthree\x85four"
"""Characters at which str.splitlines would end a line."""


def test_an_answer_with_strange_line_breaks_is_shown(tmp_path: Path) -> None:
    run = tmp_path / "evaluations" / "run"
    run.mkdir(parents=True)
    (run / "results.json").write_text("{}")
    sample = {"key": "a|whole|0", "case": "a", "status": "fail", "answers": [{"content": BREAKS}]}
    (run / "samples.jsonl").write_text(json.dumps(sample, ensure_ascii=False) + "\n", "utf-8")
    models = {"echo": Model(name="echo", runtime="echo")}
    made = Config(source=tmp_path / "config.yaml", active_model="echo", models=models, state_dir=tmp_path)
    with serve(build(made), lifespan="on", http=FAST) as url:
        (failed,) = httpx.get(f"{url}/-/evaluations/run", timeout=PATIENCE).json()["failed"]
    assert failed["answers"] == [{"content": BREAKS}]

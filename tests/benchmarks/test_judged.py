"""What a threshold decides is judged by the other half of the cases; what the model decided stays as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.judged import samples, table

Json = dict[str, Any]


def run(folder: Path, *answers: Json) -> Path:
    folder.mkdir()
    lines = [{"fingerprint": {}}, *answers]
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def answer(case: str, probability: float | None, *, calls: bool, way: str = "whole") -> Json:
    called = [{"name": "f", "arguments": "{}"}] if calls else None
    return {"case": case, "way": way, "answers": [{"calls": called, "call_probability": probability}]}


def test_the_table(tmp_path: Path) -> None:
    first = run(
        tmp_path / "first",
        *(answer(f"single-00{number}", 0.9, calls=False) for number in range(1, 5)),
        *(answer(f"abstain-00{number}", 0.1, calls=True) for number in range(1, 4)),
        answer("abstain-004", 0.95, calls=False),
        answer("noretool-001", None, calls=True),
        answer("noretool-001", None, calls=False, way="stream"),
    )
    later = run(tmp_path / "later", answer("noretool-002", None, calls=False), answer("abstain-004", 0.1, calls=True))
    found = samples([first, later])
    assert len(found) == 10
    head, _, *rows = table(found, "core").splitlines()
    assert head == "10 cases, area 1.000, threshold by all of them 0.500"
    assert [" ".join(row.split()) for row in rows] == [
        "decided by the threshold 4.0 of 4 4.0 of 4 100.0%",
        "by the model 0.0 of 0 1.0 of 2 25.0%",
        "all 4.0 of 4 5.0 of 6 91.7%",
    ]

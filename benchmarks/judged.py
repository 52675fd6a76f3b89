"""How often a model calls where it is due and keeps quiet where it isn't, by a threshold that was fitted elsewhere.

`python -m benchmarks.judged RUN ...` reads the folders of finished runs of `ctxgate model-test`, with whole answers and
a `call_threshold`; where two runs asked one case, the later folder counts. Each half of the cases is judged by the
threshold that fits the other half. Answers that the model decided by itself, such as those after a tool's result, count
as they were.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from gateway.features.evaluation.model_test.commands import suites
from gateway.features.evaluation.tune.calls import read, tried
from gateway.features.evaluation.tune.tools import Share

Json = dict[str, Any]


def samples(folders: list[Path]) -> dict[str, Json]:
    """By case."""
    found: dict[str, Json] = {}
    for folder in folders:
        for line in (folder / "samples.jsonl").read_text().splitlines():
            sample = json.loads(line)
            if sample.get("way") == "whole":
                found[sample["case"]] = sample
    return found


def called(sample: Json) -> bool:
    return any(answer.get("calls") for answer in sample["answers"])


def table(found: dict[str, Json], suite: str) -> str:
    cases = [case for case in suites([suite]).cases if case.must_call is not None]
    due = {case.id: bool(case.must_call) for case in cases}
    free = {case.id: due[case.id] for case in cases if case.tool_choice is None}
    result = tried((), read(found.values(), free))
    decided = {point.case for point in result.points}
    alone = [(due[name], called(sample)) for name, sample in found.items() if name in due and name not in decided]
    as_due = Share(sum(must and calls for must, calls in alone), sum(must for must, _ in alone))
    as_quiet = Share(sum(not (must or calls) for must, calls in alone), sum(not must for must, _ in alone))
    rows = [
        ("decided by the threshold", result.judged.due, result.judged.quiet),
        ("by the model", as_due, as_quiet),
        ("all", _sum(result.judged.due, as_due), _sum(result.judged.quiet, as_quiet)),
    ]
    lines = [f"{len(found)} cases, area {result.area:.3f}, threshold by all of them {result.fitted.threshold:.3f}"]
    lines.append(f"{'':<26}{'calls where due':>17}{'quiet where due':>17}{'mean':>8}")
    for name, one, other in rows:
        mean = (one.k / max(1, one.n) + other.k / max(1, other.n)) / 2
        lines.append(f"{name:<26}{one!s:>17}{other!s:>17}{mean:>8.1%}")
    return "\n".join(lines)


def _sum(one: Share, other: Share) -> Share:
    return Share(one.k + other.k, one.n + other.n)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a folder given to model-test by --out")
    parser.add_argument("--suite", default="core")
    wanted = parser.parse_args()
    print(table(samples(wanted.runs), wanted.suite))
    return 0


if __name__ == "__main__":
    sys.exit(main())

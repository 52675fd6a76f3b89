"""How often a model calls where it is due and keeps quiet where it isn't, by a threshold that was fitted elsewhere.

`python -m benchmarks.judged RUN ...` reads the folders of finished runs of `ctxgate model-test`, with whole answers and
a `call_threshold`; where two runs asked one case, the later folder counts. Each half of the cases is judged by the
threshold that fits the other half, on average over many random halvings: a single one is 4 points off at times. Answers
that the model decided by itself, such as those after a tool's result, count as they were.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path
from typing import Any

from gateway.features.evaluation.model_test.commands import suites
from gateway.features.evaluation.tune.calls import Point, area, fit, judge, read

Json = dict[str, Any]
HALVINGS = 100


def samples(folders: list[Path]) -> dict[str, Json]:
    """By case."""
    found: dict[str, Json] = {}
    for folder in folders:
        for line in (folder / "samples.jsonl").read_text("utf-8").split("\n")[:-1]:
            sample = json.loads(line)
            if sample.get("way") == "whole":
                found[sample["case"]] = sample
    return found


def called(sample: Json) -> bool:
    return any(answer.get("calls") for answer in sample["answers"])


def judged(points: list[Point]) -> tuple[float, float]:
    """How many due calls are made and needless ones aren't, on average."""
    shuffled = random.Random(1)
    due, quiet = [point for point in points if point.due], [point for point in points if not point.due]
    made = kept = 0
    for _ in range(HALVINGS):
        shuffled.shuffle(due)
        shuffled.shuffle(quiet)
        for half in (0, 1):
            threshold = fit([*due[half::2], *quiet[half::2]]).threshold
            found = judge([*due[1 - half :: 2], *quiet[1 - half :: 2]], threshold)
            made, kept = made + found.due.k, kept + found.quiet.k
    return made / HALVINGS, kept / HALVINGS


def table(found: dict[str, Json], suite: str) -> str:
    cases = [case for case in suites([suite]).cases if case.must_call is not None]
    due = {case.id: bool(case.must_call) for case in cases}
    points = read(found.values(), {case.id: due[case.id] for case in cases if case.tool_choice is None})
    decided = {point.case for point in points}
    alone = [(due[name], called(sample)) for name, sample in found.items() if name in due and name not in decided]
    made, kept = judged(points)
    needed = sum(point.due for point in points)
    by_model = sum(must and calls for must, calls in alone), sum(not (must or calls) for must, calls in alone)
    calls, needless = sum(must for must, _ in alone), sum(not must for must, _ in alone)
    rows = [
        ("decided by the threshold", made, needed, kept, len(points) - needed),
        ("by the model", by_model[0], calls, by_model[1], needless),
        ("all", made + by_model[0], needed + calls, kept + by_model[1], len(points) - needed + needless),
    ]
    whole = fit(points).threshold
    lines = [f"{len(found)} cases, area {area(points):.3f}, threshold by all of them {whole:.3f}"]
    lines.append(f"{'':<26}{'calls where due':>17}{'quiet where due':>17}{'mean':>8}")
    for name, one, of_one, other, of_other in rows:
        mean = (one / max(1, of_one) + other / max(1, of_other)) / 2
        lines.append(f"{name:<26}{f'{one:.1f} of {of_one}':>17}{f'{other:.1f} of {of_other}':>17}{mean:>8.1%}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a folder given to model-test by --out")
    parser.add_argument("--suite", default="core")
    wanted = parser.parse_args()
    print(table(samples(wanted.runs), wanted.suite))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Turns samples into results to report, store and compare. Pure, except for reading and writing the file."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.features.evaluation.model_test import CHECKER, VERSION
from gateway.features.evaluation.model_test.answers import read_json
from gateway.features.evaluation.model_test.cases import Case, Json, Suite
from gateway.features.evaluation.model_test.judge import blame
from gateway.features.evaluation.model_test.run import SAMPLES, RunPlan, begun, read_samples, suspicious
from gateway.features.evaluation.model_test.shape import fault_of
from gateway.features.evaluation.model_test.stats import percentile

FORMAT = "model-test-baseline/1"
RESULTS = "results.json"

Share = dict[str, int]
"""{"k": passed, "n": tried}."""


class BadResult(ValueError):
    """A file of results or a baseline that can't be used; names the file."""


def collect(plan: RunPlan, suite: Suite, samples: Mapping[str, Json], about: Json) -> Json:
    """The results of a run. If too many cases failed or weren't run, `complete` is false and there are no scores."""
    wanted = [samples.get(task.key) for task in plan.tasks]
    asked = [sample for sample in wanted if sample is not None]
    errors = [sample for sample in asked if suspicious(sample)]
    by_case: dict[str, list[Json]] = defaultdict(list)
    for sample in asked:
        by_case[sample["case"]].append(sample)
    cases = list(dict.fromkeys(task.case.id for task in plan.tasks))
    known = {case.id: case for case in suite.cases}
    judged = {id: _case(known[id], by_case[id], plan) for id in cases if by_case[id]}
    complete = len(asked) == len(wanted) and len(errors) <= plan.max_error_rate * len(wanted)
    result: Json = {
        "format": FORMAT,
        **about,
        "suite": {"id": suite.id, "version": suite.version, "sha256": suite.sha256, "n": len(cases)},
        "gated": list(suite.gated),
        "checker": CHECKER,
        "request": plan.settings.facts(),
        "tool": f"model-test {VERSION}",
        "complete": complete,
        "asked": {"k": len(asked), "n": len(wanted)},
        "errors": [
            {"case": sample["case"], "way": sample["way"], "kind": sample["kind"], "detail": sample["detail"]}
            for sample in errors
        ],
    }
    if complete:
        result["summary"] = summary(judged)
        result["metrics"] = metrics(known, judged, asked, plan)
        result["cases"] = judged
    return result


def _case(case: Case, samples: Sequence[Json], plan: RunPlan) -> Json:
    """One case's result. Run whole and streamed, it passes if both pass and agree; repeats show how stable it is."""
    rounds: dict[int, list[Json]] = defaultdict(list)
    for sample in samples:
        rounds[sample["repeat"]].append(sample)
    outcomes = {number: _outcome(rounds[number], plan) for number in sorted(rounds)}
    first = rounds[min(rounds)]
    status, kind = outcomes[min(rounds)]
    made: Json = {"h": case.hash[:16], "c": case.category, "s": status}
    if kind is not None:
        made["k"] = kind
    if status in "PF":
        made["v"] = int(all(sample["well_formed"] for sample in first))
        made["f"] = int(all(sample["folded"] for sample in first))
        if case.must_call is not None:
            made["d"] = int(all(sample["decided"] for sample in first))
            made["call"] = int(case.must_call)
    if case.must_pass:
        made["m"] = 1
    if len(first) == 2:
        made["same"] = int(_agree(first))
    if len(outcomes) > 1:
        made["r"] = "".join(outcome for outcome, _ in outcomes.values())
        made["steady"] = int(len({_said(rounds[number]) for number in rounds}) == 1)
    if plan.concurrency == 1 and status in "PF":
        made |= _clock(first)
    return made


def _outcome(samples: Sequence[Json], plan: RunPlan) -> tuple[str, str | None]:
    for status, letter in (("error", "E"), ("fail", "F")):
        if found := next((sample for sample in samples if sample["status"] == status), None):
            return letter, found["kind"]
    if len(samples) == 2 and plan.settings.temperature == 0 and not _agree(samples):
        return "F", "stream_mismatch"
    return "P", None


def _agree(samples: Sequence[Json]) -> bool:
    return len({_said([sample]) for sample in samples}) == 1


def _said(samples: Sequence[Json]) -> str:
    """The answers without random parts: ids, layout of arguments, usage."""
    said = []
    for sample in sorted(samples, key=lambda sample: sample["way"]):
        for answer in sample["answers"]:
            calls = [(call["name"], _canonical(call["arguments"])) for call in answer.get("calls", ())]
            said.append(calls or answer.get("content"))
    return json.dumps(said)


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(read_json(arguments), sort_keys=True)
    except ValueError:
        return arguments


def _clock(samples: Sequence[Json]) -> Json:
    """Milliseconds of all steps, of the whole answers where there are any; TTFT of the first step."""
    made: Json = {}
    whole = next((sample for sample in samples if sample["way"] == "whole"), samples[0])
    if whole["replies"]:
        made["ms"] = round(sum(reply["ms"] for reply in whole["replies"]))
    for sample in samples:
        if sample["way"] == "stream" and sample["replies"] and (ttft := sample["replies"][0].get("ttft_ms")):
            made["ttft"] = round(ttft, 1)
    return made


def share(outcomes: Sequence[bool]) -> Share:
    return {"k": sum(outcomes), "n": len(outcomes)}


def summary(cases: Mapping[str, Json]) -> dict[str, Share]:
    """Strict accuracy, overall and by category; cases without an answer don't count."""
    counted = [case for case in cases.values() if case["s"] in "PF"]
    made = {"overall": share([case["s"] == "P" for case in counted])}
    for category in sorted({case["c"] for case in counted}):
        made[category] = share([case["s"] == "P" for case in counted if case["c"] == category])
    return made


def metrics(known: Mapping[str, Case], cases: Mapping[str, Json], samples: Sequence[Json], plan: RunPlan) -> Json:
    counted = {id: case for id, case in cases.items() if case["s"] in "PF"}
    first = [sample for sample in samples if sample["repeat"] == 0 and sample["status"] in ("pass", "fail")]
    judged = [sample for sample in first if "names" in sample]
    calling = [sample for sample in judged if known[sample["case"]].must_call]
    right, given, wanted, invented = (sum(sample["arguments"][i] for sample in judged) for i in range(4))
    precision, recall = _ratio(right, given), _ratio(right, wanted)
    specificity = share([bool(case["d"]) for case in counted.values() if case.get("call") == 0])
    called = share([bool(case["d"]) for case in counted.values() if case.get("call") == 1])
    chains = [sample for sample in first if len(known[sample["case"]].steps) > 1]
    kinds = Counter(re.sub("@.*", "", case["k"]) for case in counted.values() if case["s"] == "F")
    blames = Counter(blame(_inner(known[id], case, first)) for id, case in counted.items() if case["s"] == "F")
    errors = sum(case["s"] == "E" for case in cases.values())
    made: Json = {
        "folded": share([bool(case["f"]) for case in counted.values()]),
        "macro": _mean([_ratio(value["k"], value["n"]) for name, value in summary(cases).items() if name != "overall"]),
        "well_formed": share([bool(case["v"]) for case in counted.values()]),
        "schema_valid": share([sample["schema_valid"] for sample in judged if sample["schema_valid"] is not None]),
        "selection": share([sample["names"] for sample in calling]),
        "call_count": share([sample["count"] for sample in calling]),
        "arguments": {
            "precision": precision,
            "recall": recall,
            "f1": _ratio(2 * right, given + wanted),
            "invented": _ratio(invented, given),
        },
        "invented_tools": share([sample.get("kind") == "unknown_tool" for sample in judged]),
        "specificity": specificity,
        "call_recall": called,
        "balanced": _mean([_ratio(specificity["k"], specificity["n"]), _ratio(called["k"], called["n"])]),
        "chains": share([sample["status"] == "pass" for sample in chains]),
        "chain_progress": _mean([sample["steps"][0] / sample["steps"][1] for sample in chains]),
        "parity": share([bool(case["same"]) for case in counted.values() if "same" in case]),
        "ways": {
            way: share([sample["status"] == "pass" for sample in first if sample["way"] == way])
            for way in ("whole", "stream")
        },
        "kinds": dict(kinds.most_common()),
        "blame": {**dict(blames.most_common()), **({"infrastructure": errors} if errors else {})},
    }
    repeated = [case for case in counted.values() if "r" in case]
    if repeated:
        made["flips"] = share([len(set(case["r"])) > 1 for case in repeated])
        made["other_words"] = share([not case["steady"] for case in repeated])
        made["always_passed"] = share([set(case["r"]) == {"P"} for case in repeated])
    if plan.concurrency == 1:
        made["latency"] = _latency(first)
    return made


def _inner(case: Case, judged: Json, samples: Sequence[Json]) -> str:
    """The kind behind a broken chain: who is to blame is the same at every step."""
    kind: str = judged["k"]
    if not kind.startswith("chain_broken"):
        return kind
    detail = next(sample["detail"] for sample in samples if sample["case"] == case.id and sample["kind"] == kind)
    return str(detail).partition(":")[0]


def _latency(samples: Sequence[Json]) -> Json:
    made: Json = {}
    replies = [reply for sample in samples for reply in sample["replies"]]
    for name in ("ms", "ttfb_ms", "ttft_ms", "first_call_ms", "tokens_per_s"):
        if values := [reply[name] for reply in replies if name in reply]:
            made[name] = {"p50": percentile(values, 0.5), "p95": percentile(values, 0.95), "n": len(values)}
    return made


def _ratio(k: float, n: float) -> float | None:
    return round(k / n, 4) if n else None


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return round(statistics.fmean(present), 4) if present else None


def baseline(result: Json, name: str) -> Json:
    """The part of a run to keep and commit: no answers, no addresses of this machine. Raises BadResult."""
    if not result["complete"]:
        raise BadResult("an incomplete run can't be a baseline")
    kept = ("format", "created", "suite", "gated", "checker", "target", "request", "host", "tool", "complete")
    return {"name": name, **{key: result[key] for key in (*kept, "summary", "metrics", "cases") if key in result}}


def write(file: Path, result: Json) -> None:
    """Writes readable headers, and a line for each case."""
    rest = {key: value for key, value in result.items() if key != "cases"}
    text = json.dumps(rest, indent=1, ensure_ascii=False)
    if "cases" in result:
        lines = ",\n".join(f"  {json.dumps(id)}: {json.dumps(case)}" for id, case in result["cases"].items())
        text = f'{text[:-2]},\n "cases": {{\n{lines}\n }}\n}}'
    part = file.with_suffix(".part")
    part.write_text(text + "\n", "utf-8")
    part.replace(file)


def read(path: Path) -> Json:
    """A baseline file, a file of results, or the folder of a run. Raises BadResult."""
    file = path / RESULTS if path.is_dir() else path
    try:
        result = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise BadResult(f"{file}: {error.strerror}; it takes a baseline's file, or a run's folder") from error
    except (ValueError, RecursionError) as error:
        raise BadResult(f"{file}: {error}") from error
    if not isinstance(result, dict) or result.get("format") != FORMAT:
        found = result.get("format") if isinstance(result, dict) else type(result).__name__
        raise BadResult(f"{file}: its format is {found!r}, not {FORMAT!r}")
    if not result.get("complete") or "cases" not in result:
        raise BadResult(f"{file}: the run is incomplete and has no scores")
    if (fault := fault_of(result)) is not None:
        raise BadResult(f"{file} is damaged: {fault}")
    return result


def answers(folder: Path) -> dict[str, list[Json]]:
    """The samples of a run's folder by case; empty where there are none, as beside a baseline."""
    file = folder / SAMPLES
    found: dict[str, list[Json]] = defaultdict(list)
    if begun(file):
        for sample in read_samples(file)[1]:
            found[sample["case"]].append(sample)
    return found


def shown(value: Any) -> str:
    """A share as k/n and percent."""
    if isinstance(value, dict):
        return f"{value['k']}/{value['n']}" + (f" {100 * value['k'] / value['n']:.1f} %" if value["n"] else "")
    return "-" if value is None else f"{100 * value:.1f} %"

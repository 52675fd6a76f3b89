"""How well models call tools through ctxgate, beside the bare engine and Ollama: the same weights, questions, sampling.

    python -m benchmarks.accuracy                                              # four models, core: 8 hours on two cores
    python -m benchmarks.accuracy --models qwen2.5-coder-0.5b --limit 40       # 10 minutes
    python -m benchmarks.accuracy --ways bare ctxgate --suite core bfcl-mini

Each model is asked model-test's suites at temperature 0, by each way:

- bare: llama.cpp with its own parser of calls (llama-server where one is on the PATH, else the embedded engine)
- ctxgate: with the entry that `ctxgate add` writes
- reading: ctxgate, but the model alone decides whether to call: its calls are read, and nothing else is done
- native_json: ctxgate, but the engine reads the calls
- ollama: where one is installed

model-test judges the answers. "Calls where due" counts the cases whose first answer must be a call and has one, of
whichever tool; "quiet where due" those whose first answer must be words and has no call. Calls in the latter
are needless; they are listed below the table. Shares have 95 % intervals (Wilson). The difference from the bare engine
pairs the cases (Newcombe), in points; seconds are the median of a case.

Results stay in `--out`: the same command continues where it was cut off, and what is done is only read. `--fresh` adds
the model and asks everything again. Exit code 1 if ctxgate misses a goal on the whole of core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.harness import proc, report, weights
from benchmarks.harness.ways import ADDED, WAYS, Loaded, NotMeasured, Served
from gateway.engines.machine import this_machine
from gateway.features.evaluation.model_test import (
    CHECKER,
    bfcl,
    commands,
    compare,
    progress,
    results,
    run,
    stats,
    target,
)
from gateway.features.evaluation.model_test.cases import BadSuite, Case, Suite, choose
from gateway.features.evaluation.model_test.client import Client, Endpoint
from gateway.features.evaluation.model_test.request import Names, Settings

ROOT = Path(__file__).resolve().parents[1]
TEST_MODEL = ROOT / "_models/test/ctxgate-test-tools.gguf"
MODELS = (*weights.WEIGHTS, "test")
CODERS = tuple(name for name in weights.WEIGHTS if "coder" in name)
SUITES = ("core", "bfcl-mini", "smoke")
BARE, CTXGATE, READING = "bare", "ctxgate", "reading"
NAMES: Mapping[str, Names] = {"test": "dotted"}
"""How the names of tools are written: with underscores, which every server takes. The test model knows dotted ones."""
NEEDLESS = ("abstain", "missing-param", "no-retool", "irrelevance", "live_irrelevance")
"""The categories that ask for no call at all; the last two are bfcl-mini's."""

DUE_GOAL, POINTS_GOAL = 0.9, 25.0
RETRIES = 2

Json = dict[str, Any]


@dataclass(frozen=True)
class Share:
    """k of n, with the 95 % interval of the rate."""

    k: int
    n: int
    low: float
    high: float

    @classmethod
    def of(cls, outcomes: Sequence[bool]) -> Share:
        return cls(sum(outcomes), len(outcomes), *stats.wilson(sum(outcomes), len(outcomes)))

    def __str__(self) -> str:
        if not self.n:
            return "none asked"
        percent = (100 * value for value in (self.k / self.n, self.low, self.high))
        return "{} of {}: {:.1f} % ({:.1f} to {:.1f})".format(self.k, self.n, *percent)


@dataclass(frozen=True)
class Estimate:
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1f} ({self.low:.1f} to {self.high:.1f})"


@dataclass(frozen=True)
class Needless:
    """A call in the first answer to a case that asks for none. called: as `name(arguments)`."""

    case: str
    category: str
    asked: str
    called: str
    why: str


@dataclass(frozen=True)
class Figures:
    """served: how. needless_calls: by category. seconds: of a case. gained: points over the bare engine."""

    served: Json
    passed: Share
    due: Share
    quiet: Share
    needless_calls: Mapping[str, Share]
    seconds: Estimate | None
    total_seconds: float
    needless: tuple[Needless, ...] = ()
    gained: Estimate | None = None


@dataclass(frozen=True)
class Row:
    """One model by one way. figures: a string says why there are none."""

    suite: str
    model: str
    way: str
    figures: Figures | str


def figures(result: Json, cases: Mapping[str, Case], samples: Sequence[Json]) -> Figures:
    """From a result of model-test."""
    judged = [case for case in result["cases"].values() if case["s"] in "PF"]
    seconds = [max(case["ms"], 1) / 1000 for case in judged if "ms" in case]
    due = [case for case in judged if case.get("call") == 1]
    quiet = [case for case in judged if case.get("call") == 0]
    return Figures(
        served=result["target"],
        passed=Share.of([case["s"] == "P" for case in judged]),
        due=Share.of([bool(case["d"]) for case in due]),
        quiet=Share.of([bool(case["d"]) for case in quiet]),
        needless_calls={
            category: Share.of([not case["d"] for case in quiet if case["c"] == category])
            for category in NEEDLESS
            if any(case["c"] == category for case in quiet)
        },
        seconds=_median(seconds) if seconds else None,
        total_seconds=round(sum(seconds), 1),
        needless=tuple(needless(cases, samples)),
    )


def _median(values: Sequence[float]) -> Estimate:
    middle, (low, high) = stats.bootstrap_ratio(values)
    return Estimate(middle, low, high)


def gained(bare: Json, other: Json) -> Estimate:
    """The difference of the shares that passed, in points, over the cases that both answered."""
    overall = compare.compare(bare, other, compare.Rules()).tests[0]
    return Estimate(overall.difference, overall.low, overall.high)


def needless(cases: Mapping[str, Case], samples: Sequence[Json]) -> Iterator[Needless]:
    for sample in samples:
        case = cases.get(sample["case"])
        if case is None or case.must_call is not False or not sample["answers"] or sample["repeat"]:
            continue
        calls = [(call["name"], call["arguments"]) for call in sample["answers"][0].get("calls", ())]
        if calls:
            asked = next((m["content"] for m in reversed(case.messages) if m["role"] == "user"), "")
            called = ", ".join(f"{name}({arguments})" for name, arguments in calls)
            yield Needless(case.id, case.category, " ".join(str(asked).split()), called, reason(case, calls))


def reason(case: Case, calls: Sequence[tuple[str, str]]) -> str:
    """What shows that the call was needless."""
    before = [
        (call["function"]["name"], _parsed(call["function"]["arguments"]))
        for message in case.messages
        for call in message.get("tool_calls", ())
    ]
    given = [(name, _parsed(arguments)) for name, arguments in calls]
    if any(call in before for call in given):
        return "repeats a call whose result is there"
    if not all(isinstance(arguments, dict) for _, arguments in given):
        return "its arguments aren't an object"
    words = json.dumps([message.get("content") for message in case.messages], ensure_ascii=False).lower()
    if invented := [key for _, arguments in given for key in _unsaid(arguments, words)]:
        return f"invents {', '.join(dict.fromkeys(invented))}"
    required = {
        tool["function"]["name"]: tool["function"].get("parameters", {}).get("required", ()) for tool in case.tools
    }
    if absent := [key for name, arguments in given for key in required.get(name, ()) if key not in arguments]:
        return f"leaves out {', '.join(dict.fromkeys(absent))}"
    return "goes on calling after the result" if before else "no tool does what was asked"


def _unsaid(arguments: Json, words: str) -> Iterator[str]:
    """The arguments with a text or number that nobody said."""
    for key, value in arguments.items():
        said = rf"(?<!\w){re.escape(str(value).lower())}(?!\w)"
        if isinstance(value, str | int | float) and not isinstance(value, bool) and not re.search(said, words):
            yield key


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    lines = [
        "| suite | model | way | passed | points over bare | calls where due | quiet where due | needless calls "
        "| seconds a case |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in rows:
        found = each.figures
        if isinstance(found, str):
            lines.append(f"| {each.suite} | {each.model} | {each.way} | not measured: {found} | | | | | |")
            continue
        calls = "; ".join(f"{name} {share.k} of {share.n}" for name, share in found.needless_calls.items())
        shown = (found.passed, found.gained or "", found.due, found.quiet, calls, found.seconds or "")
        lines.append(f"| {' | '.join(map(str, (each.suite, each.model, each.way, *shown)))} |")
    return "\n".join(lines)


def needless_list(rows: Sequence[Row]) -> str:
    lines = []
    for each in rows:
        for call in () if isinstance(each.figures, str) else each.figures.needless:
            asked = call.asked if len(call.asked) <= 100 else f"…{call.asked[-99:]}"
            called = call.called if len(call.called) <= 120 else f"{call.called[:119]}…"
            lines.append(f"{each.model}, {each.way}, {call.case}: {asked!r} → {called}: {call.why}")
    return "\n".join(lines)


def goals_of(rows: Sequence[Row]) -> list[report.Goal]:
    """What ctxgate has to show on the whole of core. Most due calls are asked of the reader alone: a threshold may make
    fewer of them, where more cases pass then."""
    goals = []
    for each in rows:
        found = each.figures
        if each.suite != "core" or isinstance(found, str):
            continue
        if each.way == CTXGATE:
            points = found.gained.value if found.gained is not None else None
            lead = POINTS_GOAL if each.model in CODERS else 0.0
            goals.append(report.Goal(f"{each.model}: points over the bare engine", points, ">=", lead))
        elif each.way == READING and each.model in CODERS and found.due.n:
            share = found.due.k / found.due.n
            goals.append(report.Goal(f"{each.model}: calls where due", share, ">=", DUE_GOAL))
    return goals


@dataclass(frozen=True)
class Options:
    """threads: of each engine. timeout: seconds for one answer."""

    out: Path
    threads: int
    max_tokens: int = 200
    timeout: float = 3600.0
    limit: int | None = None
    fresh: bool = False
    smoke: bool = True
    quiet: bool = False


def measure(model: str, file: Path, way: str, suite: Suite, options: Options) -> tuple[Figures, Json]:
    """Asks what hasn't been asked yet. Returns the figures and model-test's result.

    Raises NotMeasured, and run.OtherRun if the kept answers were asked otherwise.
    """
    folder = options.out / model / way / suite.id
    cases = choose(suite.cases, options.limit)
    settings = Settings(max_tokens=options.max_tokens, names=NAMES.get(model, "underscore"))
    facts = {"threads": options.threads, "file_sha256": target.file_sha256(file)}
    loaded = Loaded(model, file, options.out / model, options.threads, options.smoke)
    with WAYS[way](loaded) as served:
        endpoint = Endpoint(served.base_url, served.model)
        # The port is another one each time.
        asked = {**run.fingerprint(settings, endpoint, CHECKER), "url": way, "served": {**served.facts, **facts}}
        plan = run.RunPlan(settings, run.tasks(cases, settings, 1), asked, ours=served.ours)
        samples = run.Samples(folder, asked, fresh=options.fresh)
        try:
            asyncio.run(_ask(served, plan, samples, options))
        finally:
            samples.close()
    about = {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "target": {"model": model, **served.facts, **facts},
        "host": target.host(),
        "url": way,
    }
    result = results.collect(plan, suite, samples.done, about)
    results.write(folder / results.RESULTS, result)
    if not result["complete"]:
        raise NotMeasured(f"{result['asked']['k']} of {result['asked']['n']} asked, {len(result['errors'])} errors")
    keys = {task.key for task in plan.tasks}
    kept = [sample for key, sample in samples.done.items() if key in keys]
    return figures(result, {case.id: case for case in cases}, kept), result


async def _ask(served: Served, plan: run.RunPlan, samples: run.Samples, options: Options) -> None:
    if all(samples.done.get(task.key, {}).get("status") in ("pass", "fail") for task in plan.tasks):
        return
    endpoint = Endpoint(served.base_url, served.model)
    async with Client(endpoint, timeout=options.timeout, retries=RETRIES) as client:
        try:
            await run.preflight(client, plan.settings, 1)
        except run.Unreachable as error:
            raise NotMeasured(str(error)) from error
        with progress.shown(plan, samples, quiet=options.quiet) as advance:
            await run.run(client, plan, samples, advance)


def measure_all(models: Sequence[str], ways: Sequence[str], suites: Sequence[Suite], options: Options) -> list[Row]:
    rows: list[Row] = []
    for model in models if options.fresh else ():
        (options.out / model / ADDED).unlink(missing_ok=True)
    for suite in suites:
        for model in models:
            rows += _rows(model, ways, suite, options)
    return rows


def _rows(model: str, ways: Sequence[str], suite: Suite, options: Options) -> Iterator[Row]:
    try:
        file = TEST_MODEL if model == "test" else weights.path(model)
    except weights.Unavailable as error:
        yield from (Row(suite.id, model, way, str(error)) for way in ways)
        return
    reference: Json | None = None
    for way in ways:
        print(f"{model}, {suite.id}, {way}", file=sys.stderr, flush=True)
        try:
            found, result = measure(model, file, way, suite, options)
        except NotMeasured as error:
            yield Row(suite.id, model, way, " ".join(str(error).split()))
            continue
        reference = result if way == BARE else reference
        if reference is not None and way != BARE:
            found = replace(found, gained=gained(reference, result))
        yield Row(suite.id, model, way, found)


def load_suites(names: Sequence[str]) -> list[Suite]:
    """Raises BadSuite if BFCL can't be fetched."""
    if any(name.startswith("bfcl") for name in names):
        bfcl.fetch(target.cache())
    return [commands.suites([name]) for name in names]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.accuracy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models", nargs="+", default=[*MODELS], choices=MODELS, metavar="NAME", help=", ".join(MODELS)
    )
    parser.add_argument("--ways", nargs="+", default=[*WAYS], choices=[*WAYS], metavar="WAY", help=", ".join(WAYS))
    parser.add_argument("--suite", nargs="+", default=["core"], choices=SUITES)
    parser.add_argument("--limit", type=int, metavar="N", help="cases of each suite at most")
    parser.add_argument("--max-tokens", type=int, default=200, help="of an answer (default: 200)")
    parser.add_argument("--threads", type=int, default=this_machine().cores, help="of each engine (default: the cores)")
    parser.add_argument(
        "--timeout", type=float, default=3600.0, metavar="SECONDS", help="of one answer (default: 3600)"
    )
    parser.add_argument("--out", type=Path, default=target.RUNS / "accuracy", metavar="DIR", help="where results stay")
    parser.add_argument("--fresh", action="store_true", help="add the model and ask everything again")
    parser.add_argument("--no-smoke", action="store_true", help="`ctxgate add` doesn't try the model")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there, too")
    args = parser.parse_args(arguments)
    options = Options(
        out=args.out.resolve(), max_tokens=args.max_tokens, threads=args.threads, timeout=args.timeout,
        limit=args.limit, fresh=args.fresh, smoke=not args.no_smoke,
    )  # fmt: skip
    ways = [way for way in WAYS if way in args.ways]
    try:
        rows = measure_all(args.models, ways, load_suites(args.suite), options)
    except (BadSuite, run.OtherRun) as error:
        print(f"accuracy: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("accuracy: interrupted; the same command continues", file=sys.stderr)
        return 130
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(each) for each in rows], indent=1, ensure_ascii=False) + "\n", "utf-8")
    asked = f"at most {args.max_tokens} tokens an answer, temperature 0, {args.threads} thread(s)"
    print(f"{proc.machine()}; {time.strftime('%Y-%m-%d')}; {asked}.\n\n{table(rows)}\n\n{needless_list(rows)}\n")
    found = goals_of(rows) if args.limit is None else []
    print("\n".join(map(str, found)))
    return 1 if any(goal.met is False for goal in found) else 0


if __name__ == "__main__":
    proc.end_on_sigterm()
    sys.exit(main())

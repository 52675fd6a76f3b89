"""`scripts/model-test`: which command, what its outcome means to the shell."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fnmatch
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.model_test import CHECKER, VERSION, compare, fake, results, run, table, target
from benchmarks.model_test.cases import HERE, SUITES, BadSuite, Case, Json, Suite, choose, load, picks
from benchmarks.model_test.client import AskFailed, Client, Endpoint
from benchmarks.model_test.request import Settings

OK, REGRESSION, USAGE, UNREACHABLE, INCOMPLETE, NOT_COMPARABLE, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130

BASELINES = HERE.parent / "baselines"
RUNS = target.ROOT / "runs" / "model-test"

EPILOG = """\
examples:
  scripts/model-test                                   core, against the newest baseline that fits
  scripts/model-test --suite smoke --serve --model qwen3-4b
  scripts/model-test baseline save                     keep the last run as a baseline
  scripts/model-test compare benchmarks/baselines/old.json runs/model-test/NEW
  scripts/model-test selfcheck                         no endpoint needed

exit codes:
  0    no regression shown, or nothing to compare with and nothing missed
  1    a regression, a target that was missed, or a case that must pass and didn't
  2    wrong command line, suite or baseline file
  3    the endpoint can't be reached, or hasn't got the model
  4    too many questions without an answer: no score
  5    the baseline was asked or judged otherwise
  130  interrupted; the same command with the same --out goes on
"""


class Usage(Exception):
    """A wrong command line."""


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(
        prog="scripts/model-test",
        description="Tests how well a model calls tools, and whether it does so worse than the one before.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"model-test {VERSION}")
    commands = root.add_subparsers(dest="command", metavar="COMMAND")
    _run_options(commands.add_parser("run", help="run a suite (the default)"))
    both = commands.add_parser("compare", help="compare two results")
    both.add_argument("baseline", type=Path, help="a saved baseline's file, or a run's folder")
    both.add_argument("candidate", type=Path, help="the same, of the other model")
    both.add_argument("--html", type=Path, metavar="FILE", help="write the report there")
    _gate_options(both)
    both.add_argument("--json", action="store_true", help="the outcome as JSON on stdout")
    kept = commands.add_parser("baseline", help="save, list, show or remove baselines")
    kept.add_argument("action", choices=["save", "list", "show", "rm"], help="what to do with them")
    kept.add_argument("name", nargs="?", help="for save, left out: the model's")
    kept.add_argument("--from", dest="source", type=Path, metavar="DIR", help="the run; left out: the last")
    kept.add_argument("--baselines", type=Path, default=BASELINES, metavar="DIR", help=argparse.SUPPRESS)
    again = commands.add_parser("report", help="make the reports of a run again")
    again.add_argument("run", type=Path, help="its folder")
    again.add_argument("--baseline", type=Path, metavar="PATH", help="compared with this one; left out: alone")
    listed = commands.add_parser("list", help="suites, categories, cases")
    listed.add_argument("--suite", action="append", metavar="NAME", help="left out: all")
    listed.add_argument("--cases", action="store_true", help="each case with what it asks")
    fetch = commands.add_parser("fetch", help="fetch what isn't part of the repository")
    fetch.add_argument("what", choices=["bfcl"], help="BFCL's wheel, from the package index")
    check = commands.add_parser("selfcheck", help="does the judge tell right from wrong?")
    check.add_argument("--suite", action="append", metavar="NAME", help="left out: core, and bfcl if it was fetched")
    return root


def _run_options(options: argparse.ArgumentParser) -> None:
    where = options.add_argument_group("what is tested")
    where.add_argument("--base-url", metavar="URL", help="with /v1; left out: OPENAI_BASE_URL, else config.yaml's")
    where.add_argument("--api-key-env", default="OPENAI_API_KEY", metavar="NAME", help="variable with the key")
    where.add_argument("--model", metavar="ID", help="left out: the active model, else the only one")
    where.add_argument(
        "--header", action="append", default=[], metavar="NAME=VALUE", help="sent along; may be repeated"
    )
    where.add_argument("--serve", action="store_true", help="start a gateway for this run")
    where.add_argument("--config", type=Path, metavar="FILE", help="the configuration, in place of _models/config.yaml")
    where.add_argument("--fake", metavar="MODE", help="no model: oracle, never, always, noisy:0.1, leaky, broken-json")
    chosen = options.add_argument_group("what is asked")
    chosen.add_argument("--suite", action="append", metavar="NAME", help="smoke, core, bfcl-mini, bfcl or a folder")
    chosen.add_argument("--category", action="append", metavar="NAME", help="these alone; may be repeated")
    chosen.add_argument("--case", action="append", metavar="GLOB", help="by id, as `list --cases` shows it")
    chosen.add_argument("--tag", action="append", metavar="NAME", help="cases that have it")
    chosen.add_argument("--limit", type=_positive, metavar="N", help="so many cases; fewer are part of more")
    chosen.add_argument("--seed", type=int, default=0, help="which ones --limit takes")
    how = options.add_argument_group("how it is asked")
    how.add_argument("--temperature", type=float, default=0.0, metavar="T", help="default: 0")
    how.add_argument("--top-p", type=float, default=1.0, metavar="P", help="default: 1")
    how.add_argument("--max-tokens", type=_positive, default=1024, metavar="N", help="of an answer; default: 1024")
    how.add_argument("--system-prompt", metavar="FILE", help="put before each conversation")
    how.add_argument("--tool-choice", choices=["auto", "required"], default="auto", help="where a case names none")
    how.add_argument("--names", choices=["dotted", "underscore"], help="left out: dotted for ctxgate, else underscore")
    how.add_argument("--stream", choices=["off", "on", "both"], default="off", help="both: each case twice")
    how.add_argument(
        "--thinking", choices=["on", "off", "default"], default="default", help="chat_template_kwargs.enable_thinking"
    )
    how.add_argument("--extra-body", type=json.loads, default={}, metavar="JSON", help="further fields of requests")
    how.add_argument("--bfcl-compat", action="store_true", help="tools with the hints that BFCL adds")
    running = options.add_argument_group("running")
    running.add_argument(
        "--concurrency", type=_positive, default=1, metavar="N", help="cases at a time; above 1 no times are told"
    )
    running.add_argument(
        "--timeout", type=float, default=120.0, metavar="SECONDS", help="for one whole answer; default: 120"
    )
    running.add_argument("--retries", type=int, default=2, metavar="N", help="of a request that failed; default: 2")
    running.add_argument(
        "--repeat", type=_positive, default=1, metavar="N", help="the suite so many times; the first one counts"
    )
    running.add_argument("--aa", action="store_true", help="twice: how much does the same model differ from itself?")
    running.add_argument("--warmup", type=_positive, default=1, metavar="N", help="questions before the first case")
    running.add_argument("--fresh", action="store_true", help="put samples aside that --out holds")
    running.add_argument(
        "--max-error-rate", type=_percent, default=2.0, metavar="PCT", help="no score above it; default: 2"
    )
    _gate_options(options)
    gate = options.add_argument_group("the gate")
    gate.add_argument("--baseline", default="auto", metavar="NAME", help="auto, none, a saved one's name, or a path")
    gate.add_argument("--baselines", type=Path, default=BASELINES, metavar="DIR", help=argparse.SUPPRESS)
    out = options.add_argument_group("output")
    out.add_argument("--out", type=Path, metavar="DIR", help="left out: a new folder below runs/model-test")
    out.add_argument("--save-baseline", nargs="?", const="", metavar="NAME", help="keep it; left out: the model's name")
    out.add_argument("--json", action="store_true", help="the results as JSON on stdout, in place of the table")
    out.add_argument("--no-html", action="store_true", help="no report.html")
    out.add_argument("--no-png", action="store_true", help="no report.png")
    out.add_argument("--quiet", action="store_true", help="no progress")
    out.add_argument("--dry-run", action="store_true", help="tell what would be asked")


def _gate_options(options: argparse.ArgumentParser) -> None:
    gate = options.add_argument_group("what is a regression")
    gate.add_argument("--alpha", type=float, default=0.05, metavar="P", help="p below it counts; default: 0.05")
    gate.add_argument("--margin", type=float, default=2.0, metavar="PTS", help="and a drop of so much; default: 2")
    gate.add_argument(
        "--noninferiority", type=float, metavar="PTS", help="pass only if shown to be less than that worse"
    )
    gate.add_argument(
        "--min", action="append", default=[], type=_minimum, metavar="CATEGORY=PCT", help="a floor; may be repeated"
    )
    gate.add_argument("--targets", choices=["localcowork"], help="select 90, chain 80, abstain+missing-param 85")
    gate.add_argument("--gate-latency", action="store_true", help="slower answers are a regression, too")
    gate.add_argument("--allow-mismatch", action="store_true", help="compare what is left of runs asked otherwise")


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help", "--version")):
        words.insert(0, "run")
    args = parser().parse_args(words)
    try:
        return _COMMANDS[args.command](args)
    except (Usage, BadSuite, results.BadResult, fake.BadMode, run.OtherRun) as error:
        return _end(USAGE, error)
    except run.Unreachable as error:
        return _end(UNREACHABLE, error)
    except compare.NotComparable as error:
        cure = "--allow-mismatch compares what is left"
        return _end(NOT_COMPARABLE, f"the two can't be compared:\n{error}\n{cure}")
    except KeyboardInterrupt:
        return INTERRUPTED


def _end(code: int, message: object) -> int:
    print(f"model-test: {message}", file=sys.stderr)
    return code


def _run(args: argparse.Namespace) -> int:
    suite = suites(args.suite or ["core"], args.bfcl_compat)
    cases = _chosen(suite, args)
    if args.dry_run:
        _print_cases(cases)
        return OK
    with _endpoint(args, cases) as (endpoint, report):
        return _run_at(args, suite, cases, endpoint, report)


def _run_at(
    args: argparse.Namespace, suite: Suite, cases: Sequence[Case], endpoint: Endpoint, report: Json | None
) -> int:
    folder = args.out or RUNS / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{_filename(endpoint.model)}"
    rules = _rules(args)
    plan, samples = asyncio.run(_ask(args, cases, endpoint, folder))
    about = {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "target": {**target.facts(report, endpoint.model)},
        "host": target.host(),
        "url": endpoint.shown,
    }
    result = results.collect(plan, suite, samples, about)
    results.write(folder / results.RESULTS, result)
    if not result["complete"]:
        print(table.incomplete(result), file=sys.stderr)
        if args.json:
            print(json.dumps(result, ensure_ascii=False))
        return INCOMPLETE
    baseline = _baseline(args, result)
    gate = compare.compare(baseline, result, rules) if baseline else compare.alone(result, rules)
    result["gate"] = gate.plain()
    results.write(folder / results.RESULTS, result)
    _reports(folder, result, gate, baseline, _baseline_folder(args), html=not args.no_html, png=not args.no_png)
    if args.save_baseline is not None:
        _save(args.baselines, results.baseline(result, args.save_baseline or _filename(endpoint.model)))
    if args.json:
        print(json.dumps({**result, "out": str(folder)}, ensure_ascii=False))
    else:
        print(table.table(result, gate, baseline))
        if baseline is None and args.baseline == "auto" and args.save_baseline is None:
            print("  nothing saved was asked in the same way; `scripts/model-test baseline save` keeps this run")
        print(f"\n{folder}")
    return OK if gate.passed else REGRESSION


async def _ask(
    args: argparse.Namespace, cases: Sequence[Case], endpoint: Endpoint, folder: Path
) -> tuple[run.Plan, dict[str, Json]]:
    async with Client(endpoint, timeout=args.timeout, retries=args.retries) as client:
        settings = _settings(args)
        facts = await run.preflight(client, settings, args.warmup)
        ours = facts["ours"]
        if args.names is None:
            settings = replace(settings, names="dotted" if ours or args.fake else "underscore")
        plan = run.Plan(
            settings=settings,
            tasks=run.tasks(cases, settings, 2 if args.aa else args.repeat),
            fingerprint=run.fingerprint(settings, endpoint, CHECKER),
            concurrency=args.concurrency,
            max_error_rate=args.max_error_rate / 100,
            fake=args.fake is not None,
            ours=ours,
        )
        if args.fake or args.serve:
            # A port that is another one each time.
            plan.fingerprint["url"] = args.fake or "ctxgate serve"
        _same_cases(folder, plan, fresh=args.fresh)
        samples = run.Samples(folder, plan.fingerprint, fresh=args.fresh)
        try:
            with _progress(plan, samples, quiet=args.quiet) as tell:
                await run.run(client, plan, samples, tell)
        finally:
            samples.close()
        return plan, samples.done


def _same_cases(folder: Path, plan: run.Plan, *, fresh: bool) -> None:
    """Samples of a case that was changed since can't go on. Raises OtherRun."""
    file = folder / run.SAMPLES
    if fresh or not file.exists():
        return
    hashes = {task.case.id: task.case.hash for task in plan.tasks}
    changed = {
        sample["case"]
        for sample in run.read_samples(file)[1]
        if hashes.get(sample["case"], sample["hash"]) != sample["hash"]
    }
    if changed:
        raise run.OtherRun(f"{file}: cases were changed since: {', '.join(sorted(changed)[:5])}. Take --fresh")


@contextlib.contextmanager
def _endpoint(args: argparse.Namespace, cases: Sequence[Case]) -> Iterator[tuple[Endpoint, Json | None]]:
    """Where the questions go, and what `ctxgate models` says of it."""
    headers = dict(_pair(text) for text in args.header)
    key = os.environ.get(args.api_key_env)
    url = args.base_url or (None if args.serve or args.config else os.environ.get("OPENAI_BASE_URL"))
    if sum(map(bool, (args.base_url, args.serve, args.fake))) > 1:
        raise Usage("choose one of --base-url, --serve and --fake")
    if args.fake:
        with fake.serving(args.fake, cases) as url:
            yield Endpoint(url, f"fake-{args.fake.partition(':')[0]}"), None
        return
    if url:
        endpoint = Endpoint(url.rstrip("/"), args.model or "", key, headers)
        yield endpoint if args.model else replace(endpoint, model=asyncio.run(_only_model(endpoint))), None
        return
    report = target.configured(args.config)
    active = next((row["name"] for row in report["models"] if row["active"]), "")
    model = args.model or active
    if args.serve:
        log = (args.out or RUNS) / "gateway.log"
        with target.gateway(args.config, model, log) as url:
            yield Endpoint(url, model, os.environ.get("CTXGATE_KEY") or key, headers), report
        return
    if not report["gateway"]["running"]:
        raise run.Unreachable(f"no gateway runs at {report['gateway']['url']}: start scripts/serve, or take --serve")
    yield Endpoint(f"{report['gateway']['url']}/v1", model, os.environ.get("CTXGATE_KEY") or key, headers), report


async def _only_model(endpoint: Endpoint) -> str:
    async with Client(endpoint, timeout=10, retries=0) as client:
        try:
            listing = await client.get("/models")
            names = [entry["id"] for entry in listing["data"]]
        except AskFailed as error:
            raise run.Unreachable(f"{endpoint.shown}/models: {error}") from error
        except (KeyError, TypeError) as error:
            raise run.Unreachable(f"{endpoint.shown}/models isn't OpenAI's list of models") from error
    if len(names) != 1:
        raise Usage(f"choose a --model: {', '.join(names)}")
    return str(names[0])


def suites(names: Sequence[str], compat: bool = False) -> Suite:
    """One suite, or several as one. Raises BadSuite and Usage."""
    found = [_suite(name, compat) for name in dict.fromkeys(names)]
    if len(found) == 1:
        return found[0]
    cases = {case.id: case for suite in found for case in suite.cases}
    gated = tuple(dict.fromkeys(category for suite in found for category in suite.gated))
    return Suite("+".join(suite.id for suite in found), 1, tuple(cases.values()), gated)


def _suite(name: str, compat: bool) -> Suite:
    if name == "core":
        return load(SUITES / "core")
    if name == "smoke":
        core, chosen = load(SUITES / "core"), picks(SUITES / "core")
        return Suite("smoke", core.version, tuple(case for case in core.cases if case.id in chosen))
    if name in ("bfcl", "bfcl-mini"):
        from benchmarks.model_test import bfcl

        return bfcl.suite(name, target.cache(), compat=compat)
    if (Path(name) / "suite.yaml").is_file():
        return load(Path(name))
    raise Usage(f"there is no suite {name}: smoke, core, bfcl-mini, bfcl, or a folder with a suite.yaml")


def _chosen(suite: Suite, args: argparse.Namespace) -> list[Case]:
    known = {case.category for case in suite.cases}
    if wrong := set(args.category or ()) - known:
        raise Usage(f"no category {', '.join(sorted(wrong))}: {', '.join(sorted(known))}")
    cases = [
        case
        for case in suite.cases
        if (not args.category or case.category in args.category)
        and (not args.case or any(fnmatch.fnmatch(case.id, glob) for glob in args.case))
        and (not args.tag or set(args.tag) & set(case.tags))
    ]
    if not cases:
        raise Usage("no case is left to ask")
    return choose(cases, args.limit, args.seed)


def _settings(args: argparse.Namespace) -> Settings:
    prompt = None
    if args.system_prompt:
        try:
            prompt = Path(args.system_prompt).read_text("utf-8").strip()
        except OSError as error:
            raise Usage(f"--system-prompt: {error}") from error
    return Settings(
        temperature=args.temperature,
        top_p=args.top_p,
        max_tokens=args.max_tokens,
        system_prompt=prompt,
        tool_choice=args.tool_choice,
        names=args.names or "dotted",
        stream=args.stream,
        thinking=args.thinking,
        extra_body=args.extra_body,
        bfcl_compat=args.bfcl_compat,
    )


def _rules(args: argparse.Namespace) -> compare.Rules:
    minimum = dict(args.min)
    if args.targets == "localcowork":
        minimum = {**compare.LOCALCOWORK, **minimum}
    return compare.Rules(
        alpha=args.alpha,
        margin=args.margin,
        noninferiority=args.noninferiority,
        minimum=minimum,
        gate_latency=args.gate_latency,
        allow_mismatch=args.allow_mismatch,
    )


def _baseline(args: argparse.Namespace, result: Json) -> Json | None:
    """`auto` is the newest saved one that was asked and judged in the same way, of all models."""
    if args.baseline == "none":
        return None
    if args.baseline != "auto":
        named = args.baselines / f"{args.baseline}.json"
        return results.read(named if named.is_file() else Path(args.baseline))
    fitting = [
        kept
        for file in args.baselines.glob("*.json")
        if not compare.mismatches(kept := results.read(file), result)
        and kept["cases"].keys() & result["cases"].keys() == result["cases"].keys()
    ]
    return max(fitting, key=lambda kept: str(kept["created"]), default=None)


def _baseline_folder(args: argparse.Namespace) -> Path | None:
    path = Path(args.baseline) if args.baseline else None
    return path if path is not None and path.is_dir() else None


def _reports(
    folder: Path,
    result: Json,
    gate: compare.Gate,
    baseline: Json | None,
    baseline_folder: Path | None,
    *,
    html: bool,
    png: bool,
) -> None:
    from benchmarks.model_test import page, picture

    if html:
        before = results.answers(baseline_folder) if baseline_folder else {}
        text = page.page(result, gate, baseline, results.answers(folder), before)
        (folder / "report.html").write_text(text, "utf-8")
    if png and not picture.draw(folder / "report.png", result, baseline):
        print("model-test: no report.png: matplotlib isn't installed (pip install '.[model-test]')", file=sys.stderr)


def _compare(args: argparse.Namespace) -> int:
    baseline, candidate = results.read(args.baseline), results.read(args.candidate)
    gate = compare.compare(baseline, candidate, _rules(args))
    if args.html:
        from benchmarks.model_test import page

        now, before = results.answers(args.candidate), results.answers(args.baseline)
        args.html.write_text(page.page(candidate, gate, baseline, now, before), "utf-8")
    print(json.dumps(gate.plain(), ensure_ascii=False) if args.json else table.table(candidate, gate, baseline))
    return OK if gate.passed else REGRESSION


def _baselines(args: argparse.Namespace) -> int:
    if args.action == "list":
        for file in sorted(args.baselines.glob("*.json")):
            kept = results.read(file)
            overall = results.shown(kept["summary"]["overall"])
            print(f"{file.stem:<40} {kept['suite']['id']:<10} {kept['created'][:10]}  {overall}")
        return OK
    if args.action == "save":
        source = args.source or _last_run()
        result = results.read(source)
        print(_save(args.baselines, results.baseline(result, args.name or _filename(result["target"]["model"]))))
        return OK
    if args.name is None:
        raise Usage(f"baseline {args.action} needs a name: see baseline list")
    file = args.baselines / f"{_filename(args.name)}.json"
    kept = results.read(file)
    if args.action == "rm":
        file.unlink()
        return OK
    print(table.table(kept, compare.alone(kept, compare.Rules()), None))
    return OK


def _save(folder: Path, kept: Json) -> Path:
    file = folder / f"{_filename(kept['name'])}.json"
    folder.mkdir(parents=True, exist_ok=True)
    results.write(file, kept)
    return file


def _last_run() -> Path:
    runs = sorted(path.parent for path in RUNS.glob(f"*/{results.RESULTS}"))
    if not runs:
        raise Usage("there is no run yet: name one with --from")
    return runs[-1]


def _report(args: argparse.Namespace) -> int:
    result = results.read(args.run)
    baseline = results.read(args.baseline) if args.baseline else None
    rules = compare.Rules()
    gate = compare.compare(baseline, result, rules) if baseline else compare.alone(result, rules)
    _reports(args.run, result, gate, baseline, args.baseline, html=True, png=True)
    print(table.table(result, gate, baseline))
    return OK


def _list(args: argparse.Namespace) -> int:
    from benchmarks.model_test import bfcl
    from benchmarks.model_test.stats import smallest_loss

    names = args.suite or ["smoke", "core", *(["bfcl-mini", "bfcl"] if bfcl.fetched(target.cache()) else [])]
    for name in names:
        suite = suites([name])
        cases = suite.cases
        print(f"{suite.id}@{suite.version}: {len(cases)} cases, sha256 {suite.sha256[:16]}")
        categories = dict.fromkeys(case.category for case in cases)
        for category in categories:
            count = sum(case.category == category for case in cases)
            print(f"  {category:<24} {count:>5}{'  compared by itself' if category in suite.gated else ''}")
        print(f"  a change of one case is {100 / len(cases):.2f} points; with none won, {smallest_loss(0)} lost show")
        if args.cases:
            _print_cases(cases)
    if not args.suite and "bfcl" not in names:
        print("bfcl-mini, bfcl: not fetched yet: scripts/model-test fetch bfcl")
    return OK


def _print_cases(cases: Sequence[Case]) -> None:
    for case in cases:
        asked = next((m["content"] for m in reversed(case.messages) if m["role"] == "user"), "")
        text = " ".join(str(asked).split())
        print(f"{case.id:<16} {case.category:<15} {len(case.tools):>3} tools  {text[-90:]}")


def _fetch(args: argparse.Namespace) -> int:
    from benchmarks.model_test import bfcl

    print(bfcl.fetch(target.cache()))
    return OK


def _selfcheck(args: argparse.Namespace) -> int:
    from benchmarks.model_test import bfcl, selfcheck

    names = args.suite or ["core", *(["bfcl"] if bfcl.fetched(target.cache()) else [])]
    wrong = selfcheck.statistics()
    print(f"statistics: {'right' if not wrong else '; '.join(wrong)}")
    for name in names:
        report = selfcheck.suite(suites([name]))
        print(report)
        wrong += report.wrong
    return REGRESSION if wrong else OK


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "run": _run,
    "compare": _compare,
    "baseline": _baselines,
    "report": _report,
    "list": _list,
    "fetch": _fetch,
    "selfcheck": _selfcheck,
}


@contextlib.contextmanager
def _progress(plan: run.Plan, samples: run.Samples, *, quiet: bool) -> Iterator[Callable[[Json], None]]:
    """A bar on stderr; where that is no terminal, a line every ten seconds."""
    keys = {task.key for task in plan.tasks}
    done = [sample["status"] for key, sample in samples.done.items() if key in keys and sample["status"] != "error"]
    counts = {status: done.count(status) for status in ("pass", "fail", "error")}
    if quiet:
        yield lambda sample: None
        return
    try:
        from tqdm import tqdm
    except ImportError:
        print("model-test: no progress bar: tqdm isn't installed (pip install '.[model-test]')", file=sys.stderr)
        yield lambda sample: None
        return
    cases = len({task.case.id for task in plan.tasks})
    if cases != len(plan.tasks):
        print(
            f"model-test: {cases} cases, {len(plan.tasks)} answers: some cases are asked more than once",
            file=sys.stderr,
        )
    terminal = sys.stderr.isatty()
    form = "{n_fmt}/{total_fmt} · {desc} · {rate_inv_fmt} · ETA {remaining}"
    with tqdm(
        desc="pass - · err 0",
        total=len(plan.tasks),
        initial=len(done),
        file=sys.stderr,
        unit="answer",
        bar_format="{bar:20} " + form if terminal else form + "\n",
        mininterval=0.2 if terminal else 10,
        maxinterval=1 if terminal else 30,
    ) as bar:

        def tell(sample: Json) -> None:
            counts[sample["status"]] += 1
            answered = counts["pass"] + counts["fail"]
            share = 100 * counts["pass"] / answered if answered else 0.0
            bar.set_description_str(f"pass {share:.1f} % · err {counts['error']}", refresh=False)
            bar.update()

        yield tell


def _filename(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip(".-") or "model"


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise Usage(f"--header {name}: write NAME=VALUE")
    return name, value


def _minimum(text: str) -> tuple[str, float]:
    name, _, percent = text.partition("=")
    return name, _percent(percent)


def _percent(text: str) -> float:
    value = float(text.removesuffix("%"))
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text} is no percentage")
    return value


def _positive(text: str) -> int:
    value: Any = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return int(value)

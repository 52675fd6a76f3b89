"""The work of each command of `scripts/model-test`. Each returns its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace as Options
from urllib.parse import urlsplit

from gateway.cli.client import address, base_url, configured, key_for, trust, trust_at
from gateway.cli.running import located
from gateway.cli.text import say
from gateway.features.evaluation.model_test import CHECKER, advice, compare, fake, progress, results, run, table, target
from gateway.features.evaluation.model_test.cases import SUITES, Case, Json, Suite, choose, load, picks
from gateway.features.evaluation.model_test.client import AskFailed, Client, Endpoint
from gateway.features.evaluation.model_test.request import Settings
from gateway.wire.text import printable_json

OK, REGRESSION, USAGE, UNREACHABLE, INCOMPLETE, NOT_COMPARABLE, CALLS_AS_TEXT, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 130

KEY, OWN_KEY = "OPENAI_API_KEY", "CTXGATE_KEY"
"""Where the key is, unless --api-key-env or config.yaml says otherwise: of any endpoint, of this user's gateway."""

BASELINES = target.BASELINES
RUNS = target.RUNS / "model-test"


class WrongCommand(Exception):
    """A wrong command line."""


def test(args: Options) -> int:
    suite = suites(args.suite or ["core"], args.bfcl_compat)
    cases = _chosen(suite, args)
    if args.dry_run:
        _print_cases(cases)
        return OK
    with _endpoint(args, cases) as (endpoint, report):
        at = _thresholds_at if args.thresholds else _run_at
        return at(args, suite, cases, endpoint, report)


def _thresholds_at(args: Options, suite: Suite, cases: Sequence[Case], endpoint: Endpoint, report: Json | None) -> int:
    from gateway.cli.table import show
    from gateway.cli.table import table as table_of
    from gateway.features.evaluation.model_test import thresholds

    folder = _folder(args, endpoint)
    found: list[list[Json]] = []
    for name, threshold in (("calls", thresholds.CALLS), ("words", thresholds.WORDS)):
        asked = {**vars(args), "extra_body": {**args.extra_body, "call_threshold": threshold}}
        plan, samples = asyncio.run(_ask(Options(**asked), cases, endpoint, folder / name))
        result = results.collect(plan, suite, samples, _about(endpoint, report))
        if not result["complete"]:
            say(table.incomplete(result), file=sys.stderr)
            return INCOMPLETE
        found.append([*samples.values()])
    decided = thresholds.decisions(cases, *found)
    if all(each.probability is None for each in decided):
        why = next((sample["detail"] for sample in found[0] if sample.get("http")), "only ctxgate does")
        raise WrongCommand(f"{endpoint.model} told of no answer how likely a call was: {why}")
    curve = thresholds.curve(decided)
    head = ("threshold", "passed", "due calls made", "needless calls")
    show(table_of(("", *head), thresholds.rows(curve), right=head))
    if not args.no_png and not thresholds.draw(folder / "thresholds.png", endpoint.model, curve):
        say("model-test: no thresholds.png: matplotlib isn't installed (pip install '.[model-test]')", file=sys.stderr)
    say(f"\n{folder}")
    return OK


def _folder(args: Options, endpoint: Endpoint) -> Path:
    made: Path = args.out or RUNS / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{_filename(endpoint.model)}"
    return made


def _about(endpoint: Endpoint, report: Json | None) -> Json:
    return {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "target": {**target.facts(report, endpoint.model)},
        "host": target.host(),
        "url": endpoint.shown,
    }


def _run_at(args: Options, suite: Suite, cases: Sequence[Case], endpoint: Endpoint, report: Json | None) -> int:
    folder = _folder(args, endpoint)
    rules, kept = _rules(args), _kept(args)
    if args.save_baseline is not None:
        args.baselines.mkdir(parents=True, exist_ok=True)  # before anything is asked in vain
    plan, samples = asyncio.run(_ask(args, cases, endpoint, folder))
    result = results.collect(plan, suite, samples, _about(endpoint, report))
    results.write(folder / results.RESULTS, result)
    if not result["complete"]:
        say(table.incomplete(result), file=sys.stderr)
        if args.json:
            say(printable_json(json.dumps(result, ensure_ascii=False)))
        return INCOMPLETE
    baseline = _fitting(kept, result) if args.baseline == "auto" else next(iter(kept), None)
    gate = compare.compare(baseline, result, rules) if baseline else compare.alone(result, rules)
    result["gate"] = gate.plain()
    results.write(folder / results.RESULTS, result)
    _reports(folder, result, gate, baseline, _baseline_folder(args), html=not args.no_html, png=not args.no_png)
    if args.save_baseline is not None:
        saved = _save(args.baselines, results.baseline(result, args.save_baseline or _filename(endpoint.model)))
        say(f"model-test: saved as {saved}", file=sys.stderr)
    if args.json:
        say(printable_json(json.dumps({**result, "out": str(folder)}, ensure_ascii=False)))
    else:
        say(table.table(result, gate, baseline))
        if baseline is None and args.baseline == "auto" and args.save_baseline is None:
            say("  nothing saved was asked in the same way; `ctxgate model-test baseline save` keeps this run")
        say(f"\n{folder}")
    if lines := advice.advice(result, [*samples.values()], {case.id: case for case in cases}):
        say("\n" + "\n".join(lines), file=sys.stderr if args.json else sys.stdout)
        # Without a baseline, such calls may be why cases fail that must pass.
        worse = not gate.passed if baseline is not None else compare.missed(result, rules.minimum)
        return REGRESSION if worse else CALLS_AS_TEXT
    return OK if gate.passed else REGRESSION


async def _ask(
    args: Options, cases: Sequence[Case], endpoint: Endpoint, folder: Path
) -> tuple[run.RunPlan, dict[str, Json]]:
    async with Client(endpoint, timeout=args.timeout, retries=args.retries) as client:
        settings = _settings(args)
        facts = await run.preflight(client, settings, args.warmup)
        ours = facts["ours"]
        if args.names is None:
            settings = replace(settings, names="dotted" if ours or args.fake else "underscore")
        plan = run.RunPlan(
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
            with progress.shown(plan, samples, quiet=args.quiet) as advance:
                await run.run(client, plan, samples, advance)
        finally:
            samples.close()
        return plan, samples.done


def _same_cases(folder: Path, plan: run.RunPlan, *, fresh: bool) -> None:
    """Raises OtherRun if a case changed since its sample in `folder` was taken."""
    file = folder / run.SAMPLES
    if fresh or not run.begun(file):
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
def _endpoint(args: Options, cases: Sequence[Case]) -> Iterator[tuple[Endpoint, Json | None]]:
    """The endpoint to ask, and the report of `ctxgate models` if it is a gateway of this configuration."""
    headers = dict(_pair(text) for text in args.header)
    key = os.environ.get(args.api_key_env or KEY)
    url = args.base_url or (None if args.serve or args.config else os.environ.get("OPENAI_BASE_URL"))
    if sum(map(bool, (args.base_url, args.serve, args.fake))) > 1:
        raise WrongCommand("choose one of --base-url, --serve and --fake")
    try:
        _ = urlsplit(url or "").port
    except ValueError as error:
        raise WrongCommand(f"{url} is no URL: {error}") from None
    if args.fake:
        with fake.serving(args.fake, cases) as url:
            yield Endpoint(url, f"fake-{args.fake.partition(':')[0]}"), None
        return
    if url:
        variable = args.api_key_env or KEY
        endpoint = Endpoint(
            url.rstrip("/"), args.model or "", key, headers, trust_at(url, args.config), key_variable=variable
        )
        yield endpoint if args.model else replace(endpoint, model=asyncio.run(_listed_model(endpoint))), None
        return
    report, server = target.configured(args.config), configured(args.config)
    own = Endpoint(
        "", "", key if args.api_key_env else key_for(server), headers, key_variable=args.api_key_env or OWN_KEY
    )
    active = next((row["name"] for row in report["models"] if row["active"]), "")
    model = args.model or active
    if args.serve:
        log = (args.out or RUNS) / "gateway.log"
        with target.gateway(args.config, model, log) as url:
            yield replace(own, base_url=url, model=model), report
        return
    server = located(server, args.config)
    if not report["gateway"]["running"]:
        raise run.Unreachable(f"no gateway runs at {address(server)}: start one, or take --serve")
    yield replace(own, base_url=f"{base_url(server)}/v1", model=model, trust=trust(server), uds=server.uds), report


async def _listed_model(endpoint: Endpoint) -> str:
    """The model to ask: the one that a gateway marks as active, else the only one."""
    async with Client(endpoint, timeout=10, retries=0) as client:
        try:
            listing = await client.get("/models")
            active = {entry["id"]: entry.get("active") is True for entry in listing["data"]}
        except AskFailed as error:
            raise run.Unreachable(f"{endpoint.shown}/models: {error}") from error
        except (AttributeError, KeyError, TypeError) as error:
            raise run.Unreachable(f"{endpoint.shown}/models isn't OpenAI's list of models") from error
    names = [name for name, is_active in active.items() if is_active] or list(active)
    if len(names) != 1:
        raise WrongCommand(
            f"choose a --model: {', '.join(names)}" if names else f"{endpoint.shown}/models lists no model"
        )
    return str(names[0])


def suites(names: Sequence[str], compat: bool = False) -> Suite:
    """Loads suites and joins them into one. Raises BadSuite and Usage."""
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
        from gateway.features.evaluation.model_test import bfcl

        return bfcl.suite(name, target.cache(), compat=compat)
    if (Path(name) / "suite.yaml").is_file():
        return load(Path(name))
    raise WrongCommand(f"there is no suite {name}: smoke, core, bfcl-mini, bfcl, or a folder with a suite.yaml")


def _chosen(suite: Suite, args: Options) -> list[Case]:
    known = {case.category for case in suite.cases}
    if wrong := set(args.category or ()) - known:
        raise WrongCommand(f"no category {', '.join(sorted(wrong))}: {', '.join(sorted(known))}")
    cases = [
        case
        for case in suite.cases
        if (not args.category or case.category in args.category)
        and (not args.case or any(fnmatch.fnmatch(case.id, glob) for glob in args.case))
        and (not args.tag or set(args.tag) & set(case.tags))
    ]
    if not cases:
        raise WrongCommand("no case is left to ask")
    return choose(cases, args.limit, args.seed)


def _settings(args: Options) -> Settings:
    prompt = None
    if args.system_prompt:
        try:
            prompt = Path(args.system_prompt).read_text("utf-8").strip()
        except (OSError, ValueError) as error:
            raise WrongCommand(f"--system-prompt {args.system_prompt}: {error}") from error
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


def _rules(args: Options) -> compare.Rules:
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


def _kept(args: Options) -> list[Json]:
    """The baseline that --baseline names; of `auto`, all saved ones. Raises BadResult."""
    if args.baseline == "none":
        return []
    if args.baseline == "auto":
        return [kept for _, kept in _saved(args.baselines)]
    return [results.read(_place(args.baselines, args.baseline))]


def _place(folder: Path, name: str | Path) -> Path:
    """What the path names if that exists, else the baseline that is saved by this name."""
    named = folder / f"{_filename(str(name))}.json"
    return Path(name) if Path(name).exists() or not named.is_file() else named


def _saved(folder: Path) -> Iterator[tuple[Path, Json]]:
    """The baselines in the folder. Says which files are none."""
    for file in sorted(folder.glob("*.json")):
        try:
            yield file, results.read(file)
        except results.BadResult as error:
            say(f"model-test: {error}", file=sys.stderr)


def _fitting(saved: Sequence[Json], result: Json) -> Json | None:
    """The newest one, of any model, with comparable conditions."""
    fitting = [
        kept
        for kept in saved
        if not compare.mismatches(kept, result)
        and kept["cases"].keys() & result["cases"].keys() == result["cases"].keys()
    ]
    return max(fitting, key=lambda kept: str(kept["created"]), default=None)


def _baseline_folder(args: Options) -> Path | None:
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
    from gateway.features.evaluation.model_test import page, picture

    if html:
        before = results.answers(baseline_folder) if baseline_folder else {}
        text = page.page(result, gate, baseline, results.answers(folder), before)
        (folder / "report.html").write_text(text, "utf-8")
    if png and not picture.draw(folder / "report.png", result, baseline):
        say("model-test: no report.png: matplotlib isn't installed (pip install '.[model-test]')", file=sys.stderr)


def compare_two(args: Options) -> int:
    before, after = _place(args.baselines, args.baseline), _place(args.baselines, args.candidate)
    baseline, candidate = results.read(before), results.read(after)
    gate = compare.compare(baseline, candidate, _rules(args))
    if args.html:
        from gateway.features.evaluation.model_test import page

        now, then = results.answers(after), results.answers(before)
        args.html.write_text(page.page(candidate, gate, baseline, now, then), "utf-8")
    told = printable_json(json.dumps(gate.plain(), ensure_ascii=False))
    say(told if args.json else table.table(candidate, gate, baseline))
    return OK if gate.passed else REGRESSION


def baselines(args: Options) -> int:
    if args.action == "list":
        for file, kept in _saved(args.baselines):
            overall = results.shown(kept["summary"]["overall"])
            say(f"{file.stem:<40} {kept['suite']['id']:<10} {kept['created'][:10]}  {overall}")
        return OK
    if args.action == "save":
        source = args.source or _last_run()
        result = results.read(source)
        say(_save(args.baselines, results.baseline(result, args.name or _filename(result["target"]["model"]))))
        return OK
    if args.name is None:
        raise WrongCommand(f"baseline {args.action} needs a name: see baseline list")
    file = args.baselines / f"{_filename(args.name)}.json"
    kept = results.read(file)
    if args.action == "rm":
        file.unlink()
        return OK
    say(table.table(kept, compare.alone(kept, compare.Rules()), None))
    return OK


def _save(folder: Path, kept: Json) -> Path:
    file = folder / f"{_filename(kept['name'])}.json"
    folder.mkdir(parents=True, exist_ok=True)
    results.write(file, kept)
    return file


def _last_run() -> Path:
    runs = sorted(path.parent for path in RUNS.glob(f"*/{results.RESULTS}"))
    if not runs:
        raise WrongCommand("there is no run yet: name one with --from")
    return runs[-1]


def report(args: Options) -> int:
    result = results.read(args.run)
    place = _place(args.baselines, args.baseline) if args.baseline else None
    baseline = results.read(place) if place else None
    rules = compare.Rules()
    gate = compare.compare(baseline, result, rules) if baseline else compare.alone(result, rules)
    _reports(args.run, result, gate, baseline, place, html=True, png=True)
    say(table.table(result, gate, baseline))
    return OK


def list_suites(args: Options) -> int:
    from gateway.features.evaluation.model_test import bfcl
    from gateway.features.evaluation.model_test.stats import smallest_loss

    names = args.suite or ["smoke", "core", *(["bfcl-mini", "bfcl"] if bfcl.fetched(target.cache()) else [])]
    for name in names:
        suite = suites([name])
        cases = suite.cases
        say(f"{suite.id}@{suite.version}: {len(cases)} cases, sha256 {suite.sha256[:16]}")
        categories = dict.fromkeys(case.category for case in cases)
        for category in categories:
            count = sum(case.category == category for case in cases)
            say(f"  {category:<24} {count:>5}{'  compared by itself' if category in suite.gated else ''}")
        say(f"  a change of one case is {100 / len(cases):.2f} points; with none won, {smallest_loss(0)} lost show")
        if args.cases:
            _print_cases(cases)
    if not args.suite and "bfcl" not in names:
        say("bfcl-mini, bfcl: not fetched yet: ctxgate model-test fetch bfcl")
    return OK


def _print_cases(cases: Sequence[Case]) -> None:
    for case in cases:
        asked = next((m["content"] for m in reversed(case.messages) if m["role"] == "user"), "")
        text = " ".join(str(asked).split())
        say(f"{case.id:<16} {case.category:<15} {len(case.tools):>3} tools  {text[-90:]}")


def fetch(args: Options) -> int:
    from gateway.features.evaluation.model_test import bfcl

    say(bfcl.fetch(target.cache()))
    return OK


def selfcheck(args: Options) -> int:
    from gateway.features.evaluation.model_test import bfcl, selfcheck

    names = args.suite or ["core", *(["bfcl"] if bfcl.fetched(target.cache()) else [])]
    wrong = selfcheck.statistics()
    say(f"statistics: {'right' if not wrong else '; '.join(wrong)}")
    for name in names:
        report = selfcheck.suite(suites([name]))
        say(report)
        wrong += report.wrong
    return REGRESSION if wrong else OK


def _filename(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip(".-") or "model"


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise WrongCommand(f"--header {name}: write NAME=VALUE")
    return name, value

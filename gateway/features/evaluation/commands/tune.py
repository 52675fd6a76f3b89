"""`ctxgate tune`"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.options import FILE, Command, Finite, config_option, configuration, url_option
from gateway.cli.text import say
from gateway.errors import GatewayError, ProviderInvalidRequest, ProviderUnavailable

if TYPE_CHECKING:
    from gateway.config import Config, Model
    from gateway.features.evaluation.tune.kept import Kept
    from gateway.features.evaluation.tune.scores import Estimate, Result
    from gateway.features.evaluation.tune.trial import Body, Requests, Told, Trials

EXAMPLES = """\
examples:
  ctxgate tune                         try settings for the active model, in a few minutes
  ctxgate tune qwen3-4b --apply        and write the best one into config.yaml
  ctxgate tune qwen3-4b --minutes 20   with more time, for a large model
  ctxgate tune qwen3-4b --explain      the effect of each setting, from the last run
  ctxgate tune qwen3-4b --tools --apply  which way of showing tools the model understands best
  ctxgate tune qwen3-4b --calls --apply  from which probability on it should call a tool

Ctrl-C ends the trials; the results so far are shown, kept and, with --apply, written.
Other work on the machine disturbs the measurement.
"""

READING_SHARE = 0.25
"""The share of the time for `batch`, which none of the requests tells: it only matters to others while one reads."""
MAX_RECORDED = 4
"""How many recorded requests to replay."""


@click.command(cls=Command, epilog=EXAMPLES)
@config_option
@url_option
@click.option("--minutes", type=Finite(0.05), default=6.0, help="Time for the trials (default: 6).")
@click.option("--tokens", type=click.IntRange(8), default=96, help="The most tokens of an answer (default: 96).")
@click.option(
    "--all", "exhaustive", is_flag=True, help="Give every setting the same trials, instead of dropping slow ones."
)
@click.option("--apply", "applies", is_flag=True, help="Write the best setting into config.yaml.")
@click.option("--smoke/--no-smoke", default=True, help="Whether a better setting must pass model-test's smoke suite.")
@click.option("--explain", is_flag=True, help="Show the effect of each setting in the last run, without measuring.")
@click.option(
    "--tools",
    is_flag=True,
    help="Try the ways of showing tools, instead of engine settings.",
)
@click.option(
    "--calls",
    is_flag=True,
    help="Find when the model should call a tool, by examples and a threshold.",
)
@click.option("--png", type=FILE, metavar="FILE", help="--calls: draw what was found.")
@click.option(
    "--suite",
    type=click.Choice(["smoke", "core"]),
    help="The questions of model-test (default: smoke for --tools, core for --calls).",
)
@click.argument("name", required=False, metavar="[MODEL]", help="A model of config.yaml (default: the active one).")
def tune(
    config: Path | None,
    url: str | None,
    minutes: float,
    tokens: int,
    exhaustive: bool,
    applies: bool,
    smoke: bool,
    explain: bool,
    tools: bool,
    calls: bool,
    png: Path | None,
    suite: str | None,
    name: str | None,
) -> int:
    """Finds the fastest settings of a model's engine on this machine, or the best way to show it tools.

    Tries threads, speculation, cache type and flash attention of llama.cpp, on requests that the running gateway has
    recorded (log: {bodies: true}), else on built-in texts. A setting can win only if its answers have the same words at
    temperature 0, and --apply writes it only if it does no worse in the smoke suite.

    --tools asks the questions of the smoke suite once for each way of showing tools: in the chat template, in the
    system message with brief words or with examples, and in the template with examples in the system message.

    --calls asks each question of the core suite for one token, with and without example turns: how likely is it that
    the answer begins a call? It fits the probability from which on the model should call, and checks the choice with
    whole answers to the smoke suite.
    """
    from gateway.features.evaluation.tune import kept

    loaded = configuration(config)
    model = loaded.resolve(name, "chat")
    if tools:
        return _tools(loaded, model, suite or "smoke", applies=applies)
    if calls:
        return _calls(loaded, model, suite or "core", applies=applies, smoke=smoke, png=png)
    file = kept.path_of(loaded.state_dir, model.name)
    if explain:
        _explain(_known(file, model))
        return 0
    _check(model)
    before = loaded.source.read_bytes()
    texts, requests = _requests(config, url, model, tokens)
    say(f"{model.name}: {texts}", file=sys.stderr)
    found = _kept(model, texts, _measure(loaded, model, requests, minutes, exhaustive=exhaustive))
    kept.save(file, found)
    _show(found)
    changes = _changes(found, found.results[found.chosen]) | _batch(found, model)
    if not changes:
        say(f"\nNo setting is faster than {model.name} as configured.")
        return 0
    if smoke and not smokes(loaded, model, before, changes):
        say("\nThe smoke suite does worse with it, or can't be run: nothing changed", file=sys.stderr)
        return 1
    return _conclude(loaded, model, before, changes, applies=applies)


def _tools(config: Config, model: Model, suite: str, *, applies: bool) -> int:
    from gateway.features.evaluation.commands import tune_tools

    tune_tools.check(model)
    tried = tune_tools.measure(config, model, suite)
    if isinstance(tried, int):
        return tried
    tune_tools.conclude(config, model, tried, suite, applies=applies)
    return 0


def _calls(config: Config, model: Model, suite: str, *, applies: bool, smoke: bool, png: Path | None) -> int:
    from gateway.features.evaluation.commands import tune_calls
    from gateway.features.evaluation.tune.calls_picture import draw

    tune_calls.check(model)
    found = tune_calls.measure(config, model, suite)
    if isinstance(found, int):
        return found
    if png is not None and not draw(png, model.name, found):
        say("--png needs matplotlib: pip install matplotlib", file=sys.stderr)
    return tune_calls.conclude(config, model, found, suite, applies=applies, smoke=smoke)


def _check(model: Model) -> None:
    """Raises a GatewayError unless the model's engine can be tried here."""
    if model.runtime != "llama.cpp" or model.path is None or model.engine.command is not None:
        raise ProviderInvalidRequest(f"{model.name}: tune works only for llama.cpp models with a path")
    if not model.path.exists():
        raise ProviderUnavailable(f"{model.name} isn't on this machine: ctxgate pull {model.name}")


def _requests(config: Path | None, url: str | None, model: Model, tokens: int) -> tuple[str, Requests]:
    """The requests to send, and a description of them."""
    from gateway.features.evaluation.tune.texts import TEXTS

    recorded = _recorded(config, url, model, tokens)
    if recorded:
        bodies = {f"request {number}": body for number, body in recorded.items()}
        return f"{len(bodies)} recorded requests", lambda _number: bodies
    return "built-in texts", lambda number: {kind: make(1000 + number, tokens) for kind, make in TEXTS.items()}


def _recorded(config: Path | None, url: str | None, model: Model, tokens: int) -> dict[int, Body]:
    """The newest fully recorded requests for the model in the running gateway, by their numbers."""
    from gateway.cli.client import RunningGateway

    found: dict[int, Body] = {}
    with suppress(ProviderUnavailable), RunningGateway(config, url) as gateway:
        for entry in gateway.ask("GET", "/-/requests")["requests"]:
            if len(found) == MAX_RECORDED:
                break
            if entry["model"] != model.name or not entry["recorded"]:
                continue
            recording = gateway.ask("GET", f"/-/requests/{entry['id']}")["recording"] or {}
            body = dict(recording.get("request") or {})
            if not recording.get("cut") and recording.get("raw") and body.get("messages"):
                fixed = {"temperature": 0, "max_tokens": tokens, "cache_prompt": False}
                for field in ("stream", "stream_options", "model", "max_completion_tokens", "n"):
                    body.pop(field, None)
                found[entry["id"]] = {**body, **fixed}
    return found


def _measure(config: Config, model: Model, requests: Requests, minutes: float, *, exhaustive: bool) -> Trials:
    """The results up to Ctrl-C or the end of the time. Raises GatewayError if nothing can be measured."""
    from gateway.engines.machine import processors, this_machine
    from gateway.features.evaluation.tune.settings import choices, configured, grid
    from gateway.features.evaluation.tune.trial import Trials

    cores = this_machine().cores
    tried = grid(choices(configured(model, cores), cores, processors()))
    with tempfile.TemporaryDirectory(prefix="ctxgate-tune-") as folder, _progress() as told:
        trials = Trials(config, model, tried, requests, Path(folder))
        with suppress(KeyboardInterrupt):
            asyncio.run(_within(trials, minutes, told, exhaustive=exhaustive, steps=_has_steps(model)))
    own = trials.results[0]
    if own.failed or not own.readings:
        raise ProviderUnavailable(own.failed or f"{model.name} as it is configured gave no answer in that time")
    return trials


async def _within(trials: Trials, minutes: float, told: Told, *, exhaustive: bool, steps: bool) -> None:
    """steps: whether to measure how it reads with steps of several sizes."""
    with suppress(TimeoutError):
        async with asyncio.timeout(minutes * 60):
            if steps:
                with suppress(TimeoutError, GatewayError):
                    async with asyncio.timeout(minutes * 60 * READING_SHARE):
                        await trials.read()
            await (trials.all(2, told) if exhaustive else trials.halve(told))


@contextmanager
def _progress() -> Iterator[Told]:
    """On stderr: a bar with the best setting so far; where that is no terminal, a line for each answer."""
    if not sys.stderr.isatty():
        yield lambda results, done, total: say(f"{done}/{total} · {_best(results)}", file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task("as configured", total=None)

        def told(results: list[Result], done: int, total: int) -> None:
            bars.update(task, completed=done, total=total, description=_best(results))

        yield told


def _best(results: list[Result]) -> str:
    """The fastest setting so far."""
    from gateway.features.evaluation.tune.scores import ratio
    from gateway.features.evaluation.tune.settings import changed, described

    found = [(each.mean, result) for result in results[1:] if (each := ratio(result, results[0]))]
    best = max(found, key=lambda pair: pair[0], default=None)
    if best is None or best[0] <= 1:
        return "as configured"
    return f"{best[0]:.2f} times: {described(changed(best[1].keys, results[0].keys))}"


def _has_steps(model: Model) -> bool:
    """Whether the gateway chooses the model's `batch`, or config.yaml instead of it. Raises ProviderUnavailable."""
    from gateway.engines.machine import this_machine
    from gateway.engines.recipe import READING_STEP, recipe
    from gateway.features.evaluation.tune.settings import applied

    given = {arg.partition("=")[0] for arg in model.engine.args} & READING_STEP
    return not given and "--ubatch-size" in recipe(applied(model, {"batch": None}), this_machine(), 1).argv


def _kept(model: Model, texts: str, trials: Trials) -> Kept:
    from gateway.features.evaluation.tune.kept import Kept
    from gateway.features.evaluation.tune.scores import choose

    tried = [result for result in trials.results if result.readings or result.failed]
    chosen = next(place for place, result in enumerate(tried) if result is choose(tried))
    machine = f"{os.cpu_count()} processors, {time.strftime('%Y-%m-%d %H:%M')}"
    return Kept(model.name, time.time(), machine, texts, chosen, tried, trials.reading)


def _known(file: Path, model: Model) -> Kept:
    from gateway.features.evaluation.tune.kept import read

    found = read(file)
    if found is None:
        raise ProviderInvalidRequest(f"there are no results for {model.name} yet: run ctxgate tune {model.name}")
    return found


def _changes(found: Kept, result: Result) -> dict[str, Any]:
    from gateway.features.evaluation.tune.settings import changed

    return changed(result.keys, found.results[0].keys)


def _batch(found: Kept, model: Model) -> dict[str, Any]:
    """The smallest `batch` by which reading loses nothing, if the model has another one."""
    from gateway.engines.reading_step import USUAL, smallest
    from gateway.features.evaluation.tune.scores import estimate

    speeds = {size: estimate(each).mean for size, each in found.reading.items() if len(each) > 1}
    if len(speeds) < len(found.reading) or not speeds:
        return {}  # the time ran out
    size = smallest(speeds)
    return {"batch": size} if size != (model.engine.batch or USUAL) else {}


def _show(found: Kept) -> None:
    from gateway.cli.table import show, table
    from gateway.features.evaluation.tune.scores import ratio, same_words
    from gateway.features.evaluation.tune.settings import described

    base = found.results[0]
    ranked = sorted(found.results, key=lambda each: ratio(each, base).mean if ratio(each, base) else 0.0, reverse=True)  # type: ignore[union-attr]
    rows: list[tuple[str, ...]] = []
    for result in ranked:
        name = described(_changes(found, result)) or "as configured"
        mark = "*" if result is found.results[found.chosen] else ""
        if not result.readings:
            rows.append((mark, name, "", "", "", "", "", (result.failed or "").splitlines()[0]))
            continue
        words = "" if same_words(result, base) else "other words"
        rows.append((mark, name, *_figures(result, base), words))
    right = ("times", "tokens/s", "prompt tokens/s", "first token", "memory")
    show(table(("", "setting", *right, ""), rows, right=right))
    say(f"\n{found.machine}; {found.texts}; * the choice; in brackets: 95 % intervals")


def _figures(result: Result, base: Result) -> tuple[str, ...]:
    from gateway.features.evaluation.tune.scores import estimate, ratio

    readings = result.readings
    written = estimate(each.speed for each in readings)
    read = estimate(max(1, each.read) / each.first for each in readings)
    first = estimate(each.first * 1000 for each in readings)
    times = ratio(result, base)
    return (
        _number(times, 2) if times is not None else "",
        _number(written, 0),
        _number(read, 0),
        f"{first.mean:.0f} ms",
        f"{result.memory / 1e6:.0f} MB" if result.memory else "",
    )


def _number(value: Estimate, digits: int) -> str:
    shown = f"{value.mean:.{digits}f}"
    return shown if not value.low else f"{shown} ({value.low:.{digits}f} to {value.high:.{digits}f})"


def _explain(found: Kept) -> None:
    from gateway.cli.table import show, table
    from gateway.features.evaluation.tune.scores import effects
    from gateway.features.evaluation.tune.settings import written

    _show(found)
    _show_reading(found)
    winner = found.results[found.chosen]
    rows = [
        (effect.key, written(effect.value), written(effect.instead_of), _number(effect.times, 2), str(effect.pairs))
        for effect in effects(found.results, winner)
    ]
    say("\nThe effect of each key of the choice, all other keys being equal:\n")
    show(table(("key", "value", "instead of", "times", "pairs"), rows, right=("times", "pairs")))


def _show_reading(found: Kept) -> None:
    from gateway.cli.table import show, table
    from gateway.features.evaluation.tune.scores import estimate

    if not found.reading:
        return
    means = {size: estimate(each).mean for size, each in sorted(found.reading.items())}
    rows = [(str(size), f"{speed:.0f}", f"{size / speed:.2f} s") for size, speed in means.items()]
    say("\nReading a prompt, which makes other answers of the engine wait for one step at a time:\n")
    show(table(("batch", "prompt tokens/s", "a step"), rows, right=("batch", "prompt tokens/s", "a step")))


def smokes(config: Config, model: Model, before: bytes, changes: dict[str, Any]) -> bool:
    """Whether model-test's smoke suite passes no worse with the changes, as `ctxgate swap` judges it."""
    from gateway.config.edit import with_keys
    from gateway.features.evaluation.commands import swap
    from gateway.features.evaluation.tune.settings import written

    text = with_keys(before, model.name, {key: written(value) for key, value in changes.items()})
    with swap.beside(config, text) as made, tempfile.TemporaryDirectory(prefix="ctxgate-tune-") as folder:
        out = Path(folder)
        own = swap.Test(config.source, "smoke").run(model, out / "own", "none")
        return (
            own in swap.MEASURED and swap.Test(made, "smoke").run(model, out / "new", str(out / "own")) in swap.PASSED
        )


def _conclude(config: Config, model: Model, before: bytes, changes: dict[str, Any], *, applies: bool) -> int:
    from gateway.config import edit
    from gateway.features.evaluation.tune.settings import applied, written

    lines = {key: written(value) for key, value in changes.items()}
    shown = "".join(f"    {key}: {value}\n" for key, value in lines.items())
    if not applies:
        say(f"\nThe best setting, for {model.name} in {config.source}:\n{shown}ctxgate tune --apply writes it there.")
        return 0
    wanted = applied(model, changes)
    edit.write(
        config.source,
        before,
        edit.with_keys(before, model.name, lines),
        lambda made: made.models[model.name].engine == wanted.engine and made.models.keys() == config.models.keys(),
    )
    say(f"\n{config.source} has it now:\n{shown}A running gateway applies it by itself.")
    return 0

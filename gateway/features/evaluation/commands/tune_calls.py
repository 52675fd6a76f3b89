"""`ctxgate tune --calls`: when a model should call, by examples and a threshold that are measured for it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.text import say
from gateway.config.edit import with_keys, write
from gateway.config.values import DECIDED
from gateway.errors import ProviderInvalidRequest
from gateway.features.evaluation.commands.swap import MEASURED, Test, beside
from gateway.features.evaluation.tune.calls import ORDERS, Tried, choose, histogram, note, read, tried

if TYPE_CHECKING:
    from gateway.config import Config, Model

WHOLE = ("--no-html", "--no-png", "--names", "underscore")
"""Options of model-test. Most programs name their tools like this."""

QUESTIONS = (*WHOLE, "--max-tokens", "1")
"""The first token of each answer tells enough."""


def decidable(model: Model) -> bool:
    """Whether the gateway can decide for the model if it calls."""
    return model.runtime in DECIDED and model.tool_call_format != "native_json"


def check(model: Model) -> None:
    """Raises ProviderInvalidRequest if the gateway can't decide for the model whether it calls."""
    if model.runtime not in DECIDED:
        able = " and ".join(DECIDED)
        raise ProviderInvalidRequest(f"{model.name} runs on {model.runtime}; only {able} can be held to a decision")
    if model.tool_call_format == "native_json":
        raise ProviderInvalidRequest(
            f"{model.name} has tool_call_format native_json: its engine reads the calls. With another format, such as "
            "auto, the gateway does"
        )


def measure(config: Config, model: Model, suite: str) -> list[Tried] | int:
    """Asks each question of the suite for one token, once for each order of examples.

    Returns the exit code of model-test if a run has no answers.
    """
    from gateway.features.evaluation.model_test.commands import suites
    from gateway.features.evaluation.model_test.run import SAMPLES, read_samples

    cases = suites([suite]).cases
    due = {case.id: case.must_call for case in cases if case.must_call is not None and case.tool_choice is None}
    before = config.source.read_bytes()
    found: list[Tried] = []
    with tempfile.TemporaryDirectory(prefix="ctxgate-tune-") as folder:
        for number, order in enumerate(ORDERS):
            out = Path(folder) / str(number)
            say(f"\nexamples: {', '.join(order) or 'none'}", end="", file=sys.stderr)
            keys = {"call_threshold": "0.5", "tool_examples": f"[{', '.join(order)}]"}
            code = _run(config, model, with_keys(before, model.name, keys), suite, out, QUESTIONS)
            if code not in MEASURED:
                return code
            samples = [sample for sample in read_samples(out / SAMPLES)[1] if sample.get("way") == "whole"]
            found.append(tried(order, read(samples, due)))
    return found


def _run(config: Config, model: Model, made: bytes, suite: str, out: Path, options: tuple[str, ...]) -> int:
    with beside(config, made) as file:
        return Test(file, suite, options, stdout=subprocess.DEVNULL).run(model, out, "none")


def passes(config: Config, model: Model, keys: Mapping[str, str], suite: str) -> tuple[int, int] | int:
    """How many cases pass with whole answers, as configured and with the keys; else model-test's exit code."""
    from gateway.features.evaluation.model_test import results

    before, counts = config.source.read_bytes(), []
    with tempfile.TemporaryDirectory(prefix="ctxgate-tune-") as folder:
        for name, made in (("own", before), ("new", with_keys(before, model.name, keys))):
            out = Path(folder) / name
            if (code := _run(config, model, made, suite, out, WHOLE)) not in MEASURED:
                return code
            counts.append(int(results.read(out)["summary"]["overall"]["k"]))
    return counts[0], counts[1]


def show(found: list[Tried]) -> None:
    """Both histograms of each order of examples, and the table of what a threshold would do."""
    from gateway.cli.table import show, table

    chosen = choose(found)
    for each in found:
        say(f"\nexamples: {', '.join(each.examples) or 'none'}")
        for due, name in ((True, "due     "), (False, "needless")):
            say(f"  a call is {name}  0 |{histogram(each.points, due=due)}| 1")
    right = ("area", "threshold", "calls where due", "quiet where due", "mean", "by itself")
    rows = [
        (
            "*" if each is chosen else "",
            ", ".join(each.examples) or "none",
            f"{each.area:.3f}",
            f"{each.fitted.threshold:.3f}",
            str(each.judged.due),
            str(each.judged.quiet),
            f"{each.judged.mean:.1%}",
            f"{each.own.mean:.1%}",
        )
        for each in found
    ]
    say()
    show(table(("", "examples", *right), rows, right=right))
    say("\nEach half of the questions is judged by the threshold of the other. By itself: what is likelier.")


def conclude(config: Config, model: Model, found: list[Tried], suite: str, *, applies: bool, smoke: bool) -> int:
    """Shows what was found, checks the choice with whole answers, and writes it into config.yaml with its figures.
    applies: False only shows it."""
    show(found)
    chosen = choose(found)
    if chosen is None:
        say(f"\n{model.name} decides as well by itself: nothing to set.")
        return 0
    keys, comment = chosen.keys, note(chosen, suite, time.strftime("%Y-%m-%d"))
    if smoke:
        counts = passes(config, model, keys, "smoke")
        if isinstance(counts, int):
            return counts
        say(f"\nWhole answers to smoke: {counts[1]} pass with it, {counts[0]} without.")
        if counts[1] < counts[0]:
            say("Fewer than before: nothing changed.", file=sys.stderr)
            return 1
    if not applies:
        shown = "".join(f"    {key}: {value}\n" for key, value in keys.items())
        say(f"\nThe best choice, for {model.name} in {config.source}:\n{shown}    # {comment}")
        say("ctxgate tune --calls --apply writes it there.")
        return 0
    before = config.source.read_bytes()
    write(
        config.source,
        before,
        with_keys(before, model.name, keys, comment=comment),
        lambda made: made.models.keys() == config.models.keys() and made.models[model.name].call_threshold is not None,
    )
    say(f"\n{config.source} has it now. A running gateway applies it by itself.")
    return 0

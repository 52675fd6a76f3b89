"""`ctxgate tune --tools` and `ctxgate add --try-tools`: which way of showing tools a model understands best."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.backends.about import about
from gateway.cli.text import say
from gateway.config.edit import with_keys, write
from gateway.errors import ProviderInvalidRequest
from gateway.features.evaluation.commands.swap import MEASURED, Test, beside
from gateway.features.evaluation.tune.tools import Showing, Way, choose, note, read, ways

if TYPE_CHECKING:
    from gateway.config import Config, Model

QUIET = ("--no-html", "--no-png")
"""Options of model-test: only the scores are needed."""


def check(model: Model) -> None:
    """Raises ProviderInvalidRequest if the gateway doesn't decide how the model's tools are shown."""
    if model.role != "chat":
        raise ProviderInvalidRequest(f"{model.name} doesn't chat: it calls no tools")
    if model.tool_call_format == "native_json":
        raise ProviderInvalidRequest(
            f"{model.name} has tool_call_format native_json: its engine shows the tools. With another format, "
            "such as auto, the gateway can"
        )
    if not about(model.path).mentions("tools"):
        raise ProviderInvalidRequest(
            f"the chat template of {model.name} has no place for tools: the gateway lists them in the system message"
        )


def measure(config: Config, model: Model, suite: str, known: Mapping[Way, Path] = {}) -> list[Showing] | int:
    """Asks the suite's questions once for each way, the model's own way first.

    known: folders with results of ways that were measured already. Returns the exit code of model-test if a run has no
    scores.
    """
    before = config.source.read_bytes()
    tried: list[Showing] = []
    with tempfile.TemporaryDirectory(prefix="ctxgate-tune-") as folder:
        for number, way in enumerate(ways(model.tool_prompt, model.tool_wording)):
            out = known.get(way)
            if out is None:
                out = Path(folder) / str(number)
                say(f"\ntools in: {way}", end="", file=sys.stderr)
                with beside(config, with_keys(before, model.name, way.keys())) as made:
                    code = Test(made, suite, QUIET, stdout=subprocess.DEVNULL).run(model, out, "none")
                if code not in MEASURED:
                    return code
            tried.append(_read(way, out))
    return tried


def _read(way: Way, out: Path) -> Showing:
    from gateway.features.evaluation.model_test import results

    return read(way, results.read(out))


def show(tried: list[Showing]) -> None:
    """The table of what was tried."""
    from gateway.cli.table import show, table

    chosen = choose(tried)
    right = ("passed", "calls where due", "quiet where due", "seconds")
    rows = []
    for each in tried:
        mark, shares = "*" if each is chosen else "", (each.passed, each.due, each.quiet)
        rows.append((mark, str(each.way), *map(str, shares), f"{each.seconds:.0f}"))
    show(table(("", "tools in", *right), rows, right=right))
    say("\n* the choice: worse in nothing, better in something; one question more or less may be chance")


def conclude(config: Config, model: Model, tried: list[Showing], suite: str, *, applies: bool) -> None:
    """Shows the table, and writes the best way into config.yaml with its figures. applies: False only shows it."""
    say()
    show(tried)
    chosen = choose(tried)
    if chosen is tried[0]:
        say(f"\nNo way is better than {chosen.way}, the one that {model.name} has.")
        return
    comment, keys = note(chosen, tried, suite, time.strftime("%Y-%m-%d")), chosen.way.keys()
    if not applies:
        shown = "".join(f"    {key}: {value}\n" for key, value in keys.items())
        say(f"\nThe best way, for {model.name} in {config.source}:\n{shown}    # {comment}")
        say("ctxgate tune --tools --apply writes it there.")
        return
    before = config.source.read_bytes()
    write(
        config.source,
        before,
        with_keys(before, model.name, keys, comment=comment),
        lambda made: (
            made.models.keys() == config.models.keys()
            and all(getattr(made.models[model.name], key) == value for key, value in keys.items())
        ),
    )
    say(f"\n{config.source} has it now: tools in {chosen.way}. A running gateway applies it by itself.")

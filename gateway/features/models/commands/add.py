"""`ctxgate add`"""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.options import FILE, Command, config_option, configuration
from gateway.cli.text import say
from gateway.errors import GatewayError, ProviderInvalidRequest

if TYPE_CHECKING:
    from gateway.config import Config, Model
    from gateway.features.models.inventory.add import Addition

EXAMPLES = """\
examples:
  ctxgate add ~/models/Qwen3-4B-Q4_K_M.gguf                 a GGUF file, or an MLX model's folder
  ctxgate add hf:unsloth/Qwen3-4B-Instruct-2507-GGUF:Q4_K_M from the Hugging Face hub
  ctxgate add ollama:qwen3:4b                               from Ollama's library
  ctxgate add hf:rhasspy/piper-voices:en_US-joe-medium      a model that speaks, hears or draws
  ctxgate add http://127.0.0.1:8080 --name mine             a running server, such as llama-server
  ctxgate add hf:unsloth/Qwen3-4B-Instruct-2507-GGUF --dry-run
"""

QUICK_SECONDS = 3.0


@click.command(cls=Command, epilog=EXAMPLES)
@config_option
@click.option("--name", metavar="NAME", help="The model's name for clients (default: after the source).")
@click.option("--model", "model_name", metavar="ID", help="Which of the server's models to add, if it has several.")
@click.option(
    "--window",
    type=click.IntRange(1),
    metavar="TOKENS",
    help="Its context window (default: the largest one that fits into memory, 32,768 at most).",
)
@click.option("--dry-run", is_flag=True, help="Show the model and its entry, but change nothing.")
@click.option("--no-smoke", is_flag=True, help="Don't ask the model the 20 questions of the smoke suite.")
@click.option(
    "--try-tools",
    is_flag=True,
    help="Ask them once for each way of showing tools, four times in all, and keep the best way.",
)
@click.option("--out", type=FILE, metavar="DIR", help="Folder for the suite's results (default: below runs/add).")
@click.argument("source", metavar="SOURCE", help="A path, hf:org/repo[:quant], ollama:name, or a server's URL.")
def add(
    config: Path | None,
    name: str | None,
    model_name: str | None,
    window: int | None,
    dry_run: bool,
    no_smoke: bool,
    try_tools: bool,
    out: Path | None,
    source: str,
) -> int:
    """Adds a model: shows what it is, fetches it, writes its entry into config.yaml, and tests it.

    Comments in the file stay. An interrupted download resumes where it stopped when you run the same command again.
    """
    from gateway.features.models.inventory import add as inventory
    from gateway.features.models.pull.progress import progress_on

    loaded = configuration(config)
    found = inventory.identify(loaded, source, name=name, model_name=model_name, window=window)
    status = _status(loaded)
    _show(loaded, found, status)
    if dry_run:
        say(f"\n{found.entry()}")
        return 0
    if not found.there:
        with progress_on(sys.stderr) as progress:
            found = inventory.fetch(loaded, found, progress)
        _show(loaded, found, status)
    inventory.add(loaded, found)
    say(f"\n{loaded.source} has {found.name} now; `ctxgate remove {found.name}` removes it again")
    tested = 0 if no_smoke or found.facts.role != "chat" else _smoke(loaded, found.name, out, try_tools=try_tools)
    say(f"\nclients use it by base URL {_client_url(loaded)} and model {found.name}")
    return tested


def _status(config: Config) -> dict[str, Any] | None:
    """What the running gateway has in memory; None if no gateway runs here, or it doesn't say."""
    from gateway.cli.client import RunningGateway

    try:
        with RunningGateway(config.source, None) as gateway:
            answer = gateway.ask("GET", "/-/status", seconds=QUICK_SECONDS)
    except GatewayError:
        return None
    return answer if isinstance(answer, dict) else None


def _show(config: Config, found: Addition, status: dict[str, Any] | None) -> None:
    known = found.facts
    say(f"{found.name}: {found.summary()}")
    if known.role not in ("chat", "embedding"):
        say(f"  {'role':<9} {known.role}")
        if memory := _memory(config, found, status):
            say(f"  {'memory':<9} {memory}")
        return
    rows = {
        "context": _context(found),
        "template": {None: "unknown", False: "none", True: "it has one"}[known.template]
        + {None: "", False: ", without a place for tools", True: ", with a place for tools"}[known.tools],
        "dialect": _dialect(found),
        "can": ", ".join(known.capabilities),
        "works": _works(found),
        "memory": _memory(config, found, status),
    }
    for label, text in rows.items():
        if text:
            say(f"  {label:<9} {text}")


def _context(found: Addition) -> str:
    trained, window = found.facts.context, found.window or found.facts.window
    told = f"trained on {trained:,} tokens" if trained else ""
    return ", ".join(filter(None, (told, f"serves {window:,}" if window else "")))


def _dialect(found: Addition) -> str:
    known = found.facts.dialect
    if found.reads_calls:
        return "native_json: the server parses the calls"
    if known is None:
        return "native_json: nothing in its files shows another one"
    why = f"because of its {known.source}: {' '.join(known.evidence)} (in {found.facts.evidence})"
    count = found.facts.read_back
    if found.facts.derived is not None:
        return f"derived, {why}; it reads back all {count} test conversations that the template renders"
    return f"{known.format}, {why}"


def _works(found: Addition) -> str:
    """What the gateway offers with a model of Ollama, by its capabilities; "" of any other."""
    able = found.facts.capabilities
    if not able or found.facts.role != "chat":
        return ""
    tools = "tools" if "tools" in able else "tools only with a tool_call_format and `tool_prompt: system`"
    effort = "effort" if "thinking" in able else "no effort: the gateway leaves it out"
    images = "images" if "vision" in able else "no images"
    return f"{tools}; calls that are required; JSON by a schema; {effort}; {images}"


def _memory(config: Config, found: Addition, status: dict[str, Any] | None) -> str:
    from gateway.features.models.inventory.add import residents
    from gateway.features.models.inventory.fit import fit
    from gateway.features.models.pull.progress import size

    if found.need is None or found.limit is None:
        return ""
    fits = fit(config, found.name, found.need, found.limit, residents(status))
    needs = f"needs {'at least' if found.at_least else 'about'} {size(fits.need)} of {size(fits.budget)}"
    if fits.refusal is not None:
        return f"{needs}: {fits.refusal}"
    if fits.goes:
        return f"{needs}: {', '.join(fits.goes)} would have to make room"
    return f"{needs}: it fits{' beside the running models' if residents(status) else ''}"


def _smoke(config: Config, name: str, out: Path | None, *, try_tools: bool) -> int:
    """Runs the smoke suite. Returns 0, or the exit code of a run without scores, or with calls that came out as text,
    about which it has given advice. The entry stays.

    try_tools: run it for the other ways of showing tools, too, and write the best one into the entry.
    """
    from gateway.config import load
    from gateway.features.evaluation.commands.swap import CALLS_AS_TEXT, MEASURED, Test
    from gateway.features.evaluation.model_test.target import RUNS

    loaded = load(config.source, os.environ)
    model = loaded.models[name]
    out = out or RUNS / "add" / f"{name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    began = time.monotonic()
    code = Test(config.source, "smoke").run(model, out, "none")
    if code not in MEASURED:
        return code
    tried = _show_tools(loaded, model, out, time.monotonic() - began, tries=try_tools)
    return tried or (code if code == CALLS_AS_TEXT else 0)


def _show_tools(config: Config, model: Model, own: Path, seconds: float, *, tries: bool) -> int:
    """Tries the other ways of showing tools, or says how. own: the results of the first one, in so many seconds."""
    from gateway.features.evaluation.commands import tune_calls, tune_tools
    from gateway.features.evaluation.tune.tools import ways

    try:
        tune_tools.check(model)
    except ProviderInvalidRequest as refusal:
        if tries:
            say(f"\n{refusal}")
        return 0
    first, *others = ways(model.tool_prompt, model.tool_wording)
    if not tries:
        minutes = math.ceil(len(others) * seconds / 60)
        say(f"\nctxgate tune {model.name} --tools --apply finds the best way to show it tools ({minutes} min)")
        if model.call_threshold is None and tune_calls.decidable(model):
            say(f"ctxgate tune {model.name} --calls --apply finds when it should call them")
        return 0
    tried = tune_tools.measure(config, model, "smoke", {first: own})
    if isinstance(tried, int):
        return tried
    tune_tools.conclude(config, model, tried, "smoke", applies=True)
    return 0


def _client_url(config: Config) -> str:
    from gateway.cli.client import base_url

    server = config.server
    at = f"unix:{server.uds}" if server.uds is not None else f"{base_url(server)}/v1"
    return f"{at} (with your API key)" if server.api_keys else at

"""`ctxgate formats`"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.options import Command, config_option, configuration, json_option
from gateway.cli.text import say
from gateway.wire.text import printable_json

if TYPE_CHECKING:
    from gateway.backends.about import About
    from gateway.config import Model
    from gateway.detection.choice import FormatChoice

EXAMPLES = """\
examples:
  ctxgate formats
  ctxgate formats --detect lfm25-1.2b          a model of config.yaml
  ctxgate formats --detect ~/models/some.gguf  a GGUF file, an MLX model's folder, or a tokenizer_config.json
"""

NOT_DETECTED = 1

HEAD = ("FORMAT", "OTHER NAMES", "REASONING", "A CALL")
"""The calls stand last, where nothing has to be as wide as the longest of them."""
MAX_REASON = 200
"""Characters shown of what a template says."""
BREAK = "⏎"
"""Marks a line break of a call, which the table keeps on one line where it fits."""


@click.command(cls=Command, epilog=EXAMPLES)
@config_option
@click.option(
    "--detect",
    metavar="MODEL",
    help="A model of config.yaml, a GGUF file, a model's folder, or a chat template's file.",
)
@json_option
def formats(config: Path | None, detect: str | None, as_json: bool) -> int:
    """Lists the formats that tool_call_format in config.yaml accepts, or detects the one that a model writes."""
    if detect is not None:
        return _detect(config, detect, as_json)
    found = _formats()
    if as_json:
        say(printable_json(json.dumps(found, indent=2, ensure_ascii=False)))
    else:
        _show(found)
    return 0


def _show(found: list[dict[str, Any]]) -> None:
    """Without the column of reasoning and with broken calls where the whole table doesn't fit."""
    from rich.measure import Measurement

    from gateway.cli.table import UNBOUNDED, console, show, table

    out = console()
    whole = table(HEAD, [_row(entry, BREAK) for entry in found])
    if Measurement.get(out, out.options.update(max_width=UNBOUNDED), whole).maximum <= out.width:
        show(whole)
        return
    show(
        table((*HEAD[:2], HEAD[3]), [_without_reasoning(entry) for entry in found]),
        "\nctxgate formats --json shows how each format marks reasoning, too.",
    )


def _without_reasoning(entry: dict[str, Any]) -> tuple[str, ...]:
    name, aliases, _, call = _row(entry, f"{BREAK}\n")
    return name, aliases, call


def _row(entry: dict[str, Any], line_break: str) -> tuple[str, ...]:
    first, *more = ["…".join(pair) for pair in entry["reasoning"]] or ["-"]
    reasoning = f"{first} and {len(more)} more" if more else first
    if entry["format"] == "auto":
        reasoning = "(detected, too)"
    call = entry["example"].rstrip("\n").replace("\n", line_break)
    return entry["format"], ", ".join(entry["aliases"]) or "-", reasoning, call


def _formats() -> list[dict[str, Any]]:
    from normalizers import registry
    from normalizers.events import ToolCall
    from normalizers.write.grammar import grammar
    from normalizers.write.render import render_calls

    tool = {"name": "f"}
    rows = []
    for name in registry.names():
        spec = registry.get(name)
        match name:
            case "native_json":
                example = "(the engine parses the calls)"
            case "auto":
                example = "(detected from the model)"
            case _:
                example = render_calls(spec, [ToolCall("", "f", '{"x": 1}')])
        rows.append(
            {
                "format": name,
                "aliases": list(spec.aliases),
                "open": list(spec.open or spec.begins),
                "close": list(spec.close),
                "reasoning": [list(pair) for pair in spec.think],
                "example": example,
                "can_be_forced": grammar(spec, [tool]) is not None,
            }
        )
    return rows


def _detect(config: Path | None, name: str, as_json: bool) -> int:
    from gateway.backends.about import about
    from gateway.detection.choice import choose

    path = Path(name).expanduser()
    model = None if path.exists() else configuration(config).resolve(name)
    known = about(path) if model is None else asyncio.run(_ask(model))
    choice = choose(known)
    found = choice.found
    if as_json:
        report = {
            "model": name,
            "format": found.format if found else None,
            "by": found.source if found else None,
            "evidence": list(found.evidence) if found else [],
            "source": known.source or None,
            "architecture": known.architecture or None,
            "configured": model.tool_call_format if model is not None else None,
            "fields": choice.fields,
            "layout": choice.layout,
            "history": asdict(choice.history),
            "read_back": choice.probes,
            "not_read_back": choice.reason or None,
        }
        say(printable_json(json.dumps(report, indent=2, ensure_ascii=False)))
    elif found is not None:
        say(f"{name}: {found.format}")
        say(f"because of its {found.source}: {' '.join(found.evidence)} (in {known.source})")
        _tell_read_back(choice)
        if model is not None:
            say(f"config.yaml says: tool_call_format: {model.tool_call_format}")
    else:
        say(f"{name}: {_why_not(known, model)}")
        if choice.reason:
            say(f"no format is derived, either: {choice.reason[:MAX_REASON]}")
    return 0 if found is not None else NOT_DETECTED


def _tell_read_back(choice: FormatChoice) -> None:
    """What the round trip of the template shows, and a derived format as it stands in config.yaml."""
    if choice.reason:
        say(f"it doesn't read back what the template itself renders: {choice.reason[:MAX_REASON]}")
    if choice.probes:
        say(f"it reads back all {choice.probes} test conversations that the template renders")
    for words in choice.history.words():
        say(f"of its template: {words}")
    if choice.layout is not None:
        say("it forces calls as the template writes them")
    if choice.fields is not None:
        say(f"derived from the template, as `auto` does by itself; for config.yaml:\n\n{choice.in_config()}", end="")


def _why_not(known: About, model: Model | None) -> str:
    if known.source:
        return f"nothing in {known.source} reveals the format; name it with tool_call_format"
    if model is not None and model.path is not None and not model.path.exists():
        return f"unknown, since there is no {model.path}"
    return "unknown, since it is neither a GGUF file nor a model's folder"


async def _ask(model: Model) -> About:
    """Reads the model's files if they are on this machine, else asks its server. Raises GatewayError."""
    from gateway import backends
    from gateway.backends.about import UNKNOWN, about

    if (known := about(model.path)) != UNKNOWN or (model.base_url is None and model.uds is None):
        return known
    from gateway.core import address_of

    backend = backends.load(model.runtime)(model, address_of(model))
    try:
        return await backend.about()
    finally:
        await backend.aclose()

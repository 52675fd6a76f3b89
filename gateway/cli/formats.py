"""`ctxgate formats`"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any
from unicodedata import east_asian_width

from gateway.cli.common import configuration

if TYPE_CHECKING:
    from gateway.backends.about import About
    from gateway.config import Model

DESCRIPTION = (
    "Lists the formats that tool_call_format of config.yaml can name, or says which one a model writes and why."
)
EXAMPLES = """\
examples:
  ctxgate formats
  ctxgate formats --detect lfm25-1.2b          a model of config.yaml
  ctxgate formats --detect ~/models/some.gguf  a GGUF file, or an MLX model's folder
"""

NOT_DETECTED = 1

GAP = "  "
BREAK = "⏎"
NAMES, MARKS = 24, 20
"""Columns of a terminal for a format's other names, and the least for a call."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--detect", metavar="MODEL", help="a model of config.yaml, a GGUF file or a model's folder")
    parser.add_argument("--json", action="store_true", help="for programs")


def run(args: argparse.Namespace) -> int:
    if args.detect is not None:
        return _detect(args)
    rows = _rows()
    if args.json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return 0
    table = [("FORMAT", "OTHER NAMES", "A CALL", "REASONING")]
    for row in rows:
        reasoning = " ".join("…".join(pair) for pair in row["reasoning"]) or "-"
        table.append((row["format"], ", ".join(row["aliases"]) or "-", row["example"], reasoning))
    # What no person looks at keeps a line for each format.
    for line in _laid_out(table, shutil.get_terminal_size((sys.maxsize, 0)).columns):
        print(line)
    return 0


def _laid_out(table: list[tuple[str, str, str, str]], columns: int) -> Iterator[str]:
    """The table's lines; where they don't fit, without the reasoning, names and calls broken over several lines."""
    widths = [max(map(_columns, column)) for column in zip(*table, strict=True)]
    if sum(widths) + len(GAP) * 3 <= columns:
        for row in table:
            yield _line(row, widths)
        return
    widths[1:] = NAMES, max(MARKS, columns - widths[0] - NAMES - len(GAP) * 2)
    for name, others, call, _ in table:
        for cells in zip_longest([name], wrap(others, NAMES), _broken(call, widths[2]), fillvalue=""):
            yield _line(cells, widths)
    yield ""
    yield "ctxgate formats --json also tells how each marks reasoning."


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return GAP.join(cell + " " * (width - _columns(cell)) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _broken(call: str, width: int) -> list[str]:
    """Behind each of its own line breaks, and where the width is reached."""
    lines, line = [], ""
    for character in call:
        if _columns(line + character) > width or line.endswith(BREAK):
            lines.append(line)
            line = ""
        line += character
    return [*lines, line]


def _columns(text: str) -> int:
    """How much of a terminal's line it takes: DeepSeek's marks have characters of double width."""
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)


def _rows() -> list[dict[str, Any]]:
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
                example = "(the engine reads the calls)"
            case "auto":
                example = "(found out from the model)"
            case _:
                example = render_calls(spec, [ToolCall("", "f", '{"x": 1}')]).replace("\n", BREAK)
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


def _detect(args: argparse.Namespace) -> int:
    from gateway.backends.about import about
    from normalizers import detect

    path = Path(args.detect).expanduser()
    model = None if path.exists() else configuration(args).resolve(args.detect)
    known = about(path) if model is None else asyncio.run(_ask(model))
    found = detect(special_tokens=known.tokens, chat_template=known.template or "", architecture=known.architecture)
    report = {
        "model": args.detect,
        "format": found.format if found else None,
        "by": found.source if found else None,
        "evidence": list(found.evidence) if found else [],
        "source": known.source or None,
        "architecture": known.architecture or None,
        "configured": model.tool_call_format if model is not None else None,
    }
    if args.json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    elif found is not None:
        print(f"{args.detect}: {found.format}")
        print(f"because of its {found.source}: {' '.join(found.evidence)} (in {known.source})")
        if model is not None:
            print(f"config.yaml says: tool_call_format: {model.tool_call_format}")
    elif known.source:
        print(f"{args.detect}: nothing in {known.source} gives a format away; name it with tool_call_format")
    elif model is not None and model.path is not None and not model.path.exists():
        print(f"{args.detect}: nothing is known of it yet: there is no {model.path}")
    else:
        print(f"{args.detect}: nothing is known of it: it is neither a GGUF file nor a model's folder")
    return 0 if found is not None else NOT_DETECTED


async def _ask(model: Model) -> About:
    """From the model's files, where they are at hand, else from its server. Raises GatewayError."""
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

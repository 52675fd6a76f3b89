"""Feeds generated answers of every format to the normalisers and looks for a broken law.

Half of the messages are calls rendered in a format and read back. The other half are the format's parts in random
order, cut and damaged. One in four is read under another policy than the format's own. Each is read whole, character
by character and in random pieces: the events must be the same, every call must end with one JSON object, and nothing
may raise.

    python -m benchmarks.normalizer_fuzz --messages 100000 --seed 1

Exits with 1 if a law is broken, and prints the first ten texts that break one to stderr.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from normalizers import Event, FormatSpec, ToolCall, ToolEnd, ToolStart, coalesce, fold, get, names, normalizer
from normalizers.events import ToolArgs
from normalizers.values.coerce import SchemaIndex
from normalizers.write.render import render_calls

TYPES = {"text": "string", "count": "integer", "ratio": "number", "on": "boolean", "tags": "array", "options": "object"}
TOOLS = SchemaIndex(
    [
        {"name": name, "parameters": {"type": "object", "properties": {k: {"type": t} for k, t in TYPES.items()}}}
        for name in ("files.read", "set-mode", "ping")
    ]
)
FORMATS = [name for name in names() if not get(name).untouched]
ALPHABET = "abcXYZ 019_-.,:;=()[]{}<>|/\\'\"\n\t`*+é世🙂\u0000"
SOUP = [
    *("[", "]", "{", "}", "(", ")", ",", ":", "=", '"', "'", "\\", "\n", "```", "ping()", "[ping()]", " ", "é", "it's"),
    *('{"name": "ping"', '"arguments": {', "files.read(", "text='", "functions.", "**{", "Tool: ping", "null", "1e999"),
]
PROSE = ["Sure, let me look.", "1 < 2", "a [link](url)", "\n\n", "Done.", "{not json}", "émigré 🙂", "- item\n"]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--messages", type=int, default=10_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--formats", nargs="*", default=FORMATS)
    chosen = options.parse_args()
    source = random.Random(chosen.seed)
    broken: Counter[str] = Counter()
    calls = 0
    begun = time.monotonic()
    for number in range(chosen.messages):
        name = source.choice(chosen.formats)
        text, expected = message(name, source)
        reason = source.choice(("stop", "length", None))
        try:
            fault, count = judge(name, text, expected, reason, source)
        except Exception as exc:  # noqa: BLE001 - the law is that nothing raises
            fault, count = f"{type(exc).__name__}: {exc}", 0
        calls += count
        if fault:
            broken[name] += 1
            if sum(broken.values()) <= 10:
                print(f"{name} (message {number}): {fault}\n  {text!r}", file=sys.stderr)
    seconds = time.monotonic() - begun
    print(
        f"{chosen.messages} messages, {calls} calls, {len(chosen.formats)} formats, seed {chosen.seed}, {seconds:.0f} s"
    )
    print(f"broken: {sum(broken.values())} {dict(broken) or ''}")
    sys.exit(1 if broken else 0)


def message(name: str, source: random.Random) -> tuple[str, list[tuple[str, dict[str, Any]]] | None]:
    """A text, and the calls that it must yield if it is well-formed."""
    spec = get(name)
    wanted = [(source.choice(("files.read", "set-mode")), arguments(source)) for _ in range(source.randint(1, 3))]
    text = render_calls(spec, [ToolCall("", tool, json.dumps(args)) for tool, args in wanted])
    if source.random() < 0.5:
        return text, wanted
    marks = sorted({*spec.markers, *spec.open, *spec.begins})
    parts = [
        source.choice((text, text[: source.randrange(len(text))], *PROSE, *SOUP, *marks))
        for _ in range(source.randint(1, 8))
    ]
    if source.random() < 0.5:
        parts.append(text)
    return damaged("".join(parts), source), None


def arguments(source: random.Random) -> dict[str, Any]:
    keys = source.sample(sorted(TYPES), source.randint(0, 4))
    makers: dict[str, Callable[[], Any]] = {
        "text": lambda: string(source, 40),
        "count": lambda: source.choice((0, -1, 7, 10**30, source.randrange(10**6))),
        "ratio": lambda: source.choice((0.5, -1e-7, 1e22, source.random())),
        "on": lambda: source.random() < 0.5,
        "tags": lambda: [value(source, 2) for _ in range(source.randint(0, 3))],
        "options": lambda: {string(source, 6): value(source, 2) for _ in range(source.randint(0, 3))},
    }
    return {key: makers[key]() for key in keys}


def value(source: random.Random, depth: int) -> Any:
    kind = source.randrange(7 if depth else 5)
    match kind:
        case 0:
            return string(source, 20)
        case 1:
            return source.choice((None, True, False))
        case 2 | 3:
            return source.choice((1, -2, 3.5, 10**20, 0))
        case 4:
            return ""
        case 5:
            return [value(source, depth - 1) for _ in range(source.randint(0, 3))]
        case _:
            return {string(source, 5): value(source, depth - 1) for _ in range(source.randint(0, 3))}


def string(source: random.Random, longest: int) -> str:
    return "".join(source.choices(ALPHABET, k=source.randint(0, longest)))


def damaged(text: str, source: random.Random) -> str:
    for _ in range(source.randint(0, 3)):
        at = source.randrange(len(text) + 1)
        size = source.randint(0, 6)
        text = text[:at] + source.choice(("", string(source, 3), source.choice(SOUP))) + text[at + size :]
    return text


def judge(
    name: str, text: str, expected: list[tuple[str, dict[str, Any]]] | None, reason: str | None, source: random.Random
) -> tuple[str, int]:
    """The fault, or "", and the number of calls."""
    opened = expected is None and source.random() < 0.2
    spec = source.choice(policies(name))
    whole = read(spec, [text], reason, opened)
    for parts in (list(text), list(pieces(text, source)), list(pieces(text, source))):
        if read(spec, parts, reason, opened) != whole:
            return f"differs when split as {parts}", 0
    arguments_of: dict[int, str] = {}
    for event in whole:
        match event:
            case ToolStart(index):
                arguments_of[index] = ""
            case ToolArgs(index, fragment):
                arguments_of[index] += fragment
            case ToolEnd(index, cut):
                if cut and reason == "length":
                    continue
                if not isinstance(json.loads(arguments_of[index]), dict):
                    return "arguments are not an object", 0
    folded = fold(event for event in whole if not (isinstance(event, ToolEnd) and event.cut))
    calls = [(call.name, json.loads(call.arguments)) for call in folded.tool_calls]
    if expected is not None and (calls != expected or folded.content.strip()):
        return f"reads back as {calls}, {folded.content!r}; was {expected}", 0
    return "", len(calls)


@cache
def policies(name: str) -> tuple[FormatSpec, ...]:
    spec = get(name)
    return (*[spec] * 6, replace(spec, unknown_tools="refuse"), replace(spec, after="drop"))


def read(spec: FormatSpec, parts: list[str], reason: str | None, opened: bool) -> list[Event]:
    ids = map(str, itertools.count())
    parser = normalizer(spec, TOOLS, ids=lambda: next(ids), reasoning_open=opened)
    events = [event for part in parts for event in parser.feed(part)]
    return coalesce(events + parser.finish(reason))


def pieces(text: str, source: random.Random) -> Iterator[str]:
    at = 0
    while at < len(text):
        size = source.choice((1, 1, 2, 3, 5, 9, 20))
        yield text[at : at + size]
        at += size


if __name__ == "__main__":
    main()

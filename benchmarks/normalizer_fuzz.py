"""Feeds generated answers of every format to the normalisers and looks for a broken law.

Half of the messages are calls rendered in a format and read back. The other half are the format's parts in random
order, cut and damaged. One in four is read under another policy than the format's own. Each is read whole, character
by character, in random pieces and in pieces like a tokenizer's: the events must be the same, every call must end with
one JSON object, and nothing may raise.

    python -m benchmarks.normalizer_fuzz --messages 100000 --seed 1

With `--damaged`, each message is instead an answer with calls in which one to three characters are missing, doubled or
inserted, or whose end is cut off; --messages counts those of each format. Content, reasoning, calls and whether there
is one must be the same in all these pieces, under every policy; each call that is handed out must have JSON arguments,
unless the answer ended by its length.

    python -m benchmarks.normalizer_fuzz --damaged --messages 10000

Exits with 1 if a law is broken, and prints the first ten texts that break one to stderr.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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
OTHER_TOOLS = SchemaIndex([{"name": "ping"}, {"name": "rm"}])
NO_TOOLS = SchemaIndex(())
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
    options.add_argument("--damaged", action="store_true")
    chosen = options.parse_args()
    source = random.Random(chosen.seed)
    broken: Counter[str] = Counter()
    calls = 0
    begun = time.monotonic()
    each = chosen.formats * chosen.messages if chosen.damaged else [""] * chosen.messages
    for number, name in enumerate(each):
        name = name or source.choice(chosen.formats)
        text, expected = (broken_answer(name, source), None) if chosen.damaged else message(name, source)
        reason = source.choice(("stop", "length", None))
        try:
            fault, count = (
                judge_damaged(name, text, reason, source)
                if chosen.damaged
                else judge(name, text, expected, reason, source)
            )
        except Exception as exc:  # noqa: BLE001 - the law is that nothing raises
            fault, count = f"{type(exc).__name__}: {exc}", 0
        calls += count
        if fault:
            broken[name] += 1
            if sum(broken.values()) <= 10:
                print(f"{name} (message {number}): {fault}\n  {text!r}", file=sys.stderr)
    seconds = time.monotonic() - begun
    print(f"{len(each)} messages, {calls} calls, {len(chosen.formats)} formats, seed {chosen.seed}, {seconds:.0f} s")
    print(f"broken: {sum(broken.values())} {dict(broken) or ''}")
    sys.exit(1 if broken else 0)


def message(name: str, source: random.Random) -> tuple[str, list[tuple[str, dict[str, Any]]] | None]:
    """A text, and the calls that it must yield if it is well-formed."""
    spec = get(name)
    wanted = [(source.choice(("files.read", "set-mode")), arguments(name, source)) for _ in range(source.randint(1, 3))]
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


def arguments(name: str, source: random.Random) -> dict[str, Any]:
    keys = source.sample(sorted(TYPES), source.randint(0, 4))
    makers: dict[str, Callable[[], Any]] = {
        "text": lambda: quoting(name, source) if source.random() < 0.3 else string(source, 40),
        "count": lambda: source.choice((0, -1, 7, 10**30, source.randrange(10**6))),
        "ratio": lambda: source.choice((0.5, -1e-7, 1e22, source.random())),
        "on": lambda: source.random() < 0.5,
        "tags": lambda: [value(source, 2) for _ in range(source.randint(0, 3))],
        "options": lambda: {string(source, 6): value(source, 2) for _ in range(source.randint(0, 3))},
    }
    return {key: makers[key]() for key in keys}


def quoting(name: str, source: random.Random) -> str:
    """A text with one of the format's own marks in it."""
    mark = source.choice(get(name).markers or ("```",))
    return "".join((string(source, 8), source.choice(("", " ", "\n")), mark, source.choice(("", " ", "\n", "x"))))


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
    for parts in splits(name, text, source):
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


def broken_answer(name: str, source: random.Random) -> str:
    """An answer with calls that a few characters make hard or impossible to read."""
    spec = get(name)
    wanted = [
        (source.choice(("files.read", "set-mode", "rm")), arguments(name, source)) for _ in range(source.randint(1, 2))
    ]
    calls = render_calls(spec, [ToolCall("", tool, json.dumps(args)) for tool, args in wanted])
    text = source.choice(("", "", *PROSE)) + calls + source.choice(("", "", *PROSE))
    for _ in range(source.randint(1, 3)):
        at = source.randrange(len(text))
        match source.randrange(4):
            case 0:
                text = text[:at] + text[at + 1 :]
            case 1:
                text = text[:at] + text[at] + text[at:]
            case 2:
                text = text[:at] + source.choice(ALPHABET) + text[at:]
            case _:
                text = text[: max(at, len(text) // 3)]
        text = text or "x"
    return text


def judge_damaged(name: str, text: str, reason: str | None, source: random.Random) -> tuple[str, int]:
    """The fault, or "", and the number of calls."""
    spec = source.choice(policies(name))
    tools = source.choice((TOOLS, TOOLS, TOOLS, OTHER_TOOLS, NO_TOOLS))
    given: dict[str, Any] = {"allow_calls": source.random() < 0.9, "parallel": source.random() < 0.8}
    opened = source.random() < 0.1
    results = [fields_of(spec, tools, parts, reason, opened, given) for parts in ([text], *splits(name, text, source))]
    if any(result != results[0] for result in results[1:]):
        return f"differs when split: {results}", 0
    _, _, calls, called, cut = results[0]
    for at, (tool, written) in enumerate(calls):
        if cut and reason == "length" and at == len(calls) - 1:
            continue
        if not isinstance(json.loads(written), dict):
            return f"{tool}: the arguments are not an object", 0
    if called != bool(calls[: len(calls) - cut]):
        return f"called is {called} with {calls}", 0
    if tools is NO_TOOLS and spec.unknown_tools == "refuse" and calls:
        return f"calls of undeclared tools: {calls}", 0
    return "", len(calls)


Fields = tuple[str, str, list[tuple[str, str]], bool, int]


def fields_of(
    spec: FormatSpec,
    tools: SchemaIndex,
    parts: list[str],
    reason: str | None,
    opened: bool,
    given: dict[str, Any],
) -> Fields:
    """Content, reasoning, the calls that a client gets from the stream, whether there is one, and whether one is cut.

    A call counts from its first event, as for a client, which can't take it back.
    """
    parser = normalizer(spec, tools, reasoning_open=opened, **given)
    events = [event for part in parts for event in parser.feed(part)] + parser.finish(reason)
    calls: list[tuple[str, str]] = []
    cut = 0
    for event in events:
        match event:
            case ToolStart(_, _, name):
                calls.append((name, ""))
            case ToolArgs(index, fragment):
                calls[index] = (calls[index][0], calls[index][1] + fragment)
            case ToolEnd(_, True):
                cut += 1
    folded = fold(events)
    assert calls == [(call.name, call.arguments) for call in folded.tool_calls], "the whole answer has other calls"
    return folded.content, folded.reasoning, calls, parser.called, cut


@cache
def policies(name: str) -> tuple[FormatSpec, ...]:
    spec = get(name)
    return (*[spec] * 6, replace(spec, unknown_tools="forward"), replace(spec, after="drop"))


def read(spec: FormatSpec, parts: list[str], reason: str | None, opened: bool) -> list[Event]:
    ids = map(str, itertools.count())
    parser = normalizer(spec, TOOLS, ids=lambda: next(ids), reasoning_open=opened)
    events = [event for part in parts for event in parser.feed(part)]
    return coalesce(events + parser.finish(reason))


def splits(name: str, text: str, source: random.Random) -> Iterator[list[str]]:
    yield list(text)
    yield list(pieces(text, source))
    yield tokens(text)
    yield tokens(text, longest=source.randint(1, 3), marks=get(name).markers if source.random() < 0.5 else ())


def tokens(text: str, *, longest: int = 2, marks: Sequence[str] = ()) -> list[str]:
    """Pieces as a tokenizer cuts them: words with the blank before them, signs in runs of up to `longest`, white space,
    and the marks that are special tokens whole."""
    return _token(longest, tuple(marks)).findall(text)


@cache
def _token(longest: int, marks: tuple[str, ...]) -> re.Pattern[str]:
    special = "".join(f"{re.escape(mark)}|" for mark in sorted(marks, key=len, reverse=True))
    return re.compile(rf"{special}</|\n+|[ \t]?(?:[^\W_]{{1,8}}|[^\w\s]{{1,{longest}}}|_)|\s")


def pieces(text: str, source: random.Random) -> Iterator[str]:
    at = 0
    while at < len(text):
        size = source.choice((1, 1, 2, 3, 5, 9, 20))
        yield text[at : at + size]
        at += size


if __name__ == "__main__":
    main()

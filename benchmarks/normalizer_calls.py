"""Calls to measure: texts and nested values in a format's own text, and what reading their pieces costs."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable

from normalizers import ToolCall, get, normalizer
from normalizers.values.coerce import SchemaIndex
from normalizers.write.render import render_calls

WORDS = "the quick brown fox, jumps: over (the) lazy dog. "


def text(size: int) -> str:
    return (WORDS * (size // len(WORDS) + 1))[:size]


def nested(size: int) -> list[object]:
    item: dict[str, object] = {"name": "apple pie", "count": 12, "tags": ["a", "b c"], "on": True, "left": None}
    return [item] * (size // len(json.dumps(item)))


FUNCTION = "notes.write"
TOOLS = SchemaIndex([{"name": FUNCTION}, {"name": "write_note"}])


def call(name: str, value: object, function: str = FUNCTION) -> list[str]:
    """A call in the format's own text, as pieces."""
    spec = get(name)
    rendered = render_calls(spec, [ToolCall("", function, json.dumps({"body": value}))])
    source = random.Random(len(rendered))
    pieces: list[str] = []
    at = 0
    while at < len(rendered):
        size = next((len(mark) for mark in spec.markers if rendered.startswith(mark, at)), source.choice((1, 1, 2)))
        pieces.append(rendered[at : at + size])
        at += size
    return pieces


def reader(name: str, *, guarded: bool = True) -> Callable[[list[str]], None]:
    """guarded: the arguments leave piece by piece; otherwise the call is held until it is complete."""
    spec = get(name)

    def read(pieces: list[str]) -> None:
        parser = normalizer(spec, TOOLS, guarded=guarded)
        feed = parser.feed
        for piece in pieces:
            feed(piece)
        parser.finish("stop")
        assert parser.called

    return read


def least(read: Callable[[list[str]], None], pieces: list[str], rounds: int) -> float:
    return min(cost(read, pieces) for _ in range(max(3, rounds if len(pieces) < 10_000 else rounds // 4)))


def cost(read: Callable[[list[str]], None], pieces: list[str]) -> float:
    repeats = max(1, 500 // len(pieces))
    begun = time.process_time()
    for _ in range(repeats):
        read(pieces)
    return (time.process_time() - begun) / repeats / len(pieces)

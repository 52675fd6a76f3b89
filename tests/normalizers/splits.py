"""Feeds one text whole, character by character and in random pieces."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from normalizers import Event, FormatSpec, Message, coalesce, fold, normalizer


def run(
    spec: FormatSpec | str, pieces: Iterable[str], tools: Sequence[Mapping[str, Any]] = (), /, **options: Any
) -> list[Event]:
    reason = options.pop("reason", "stop")
    count = itertools.count()
    parser = normalizer(spec, tools, ids=lambda: f"call_{next(count)}", **options)
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.finish(reason)


def splits(text: str, *, random_splits: int = 5, seed: int = 7) -> Iterator[list[str]]:
    yield [text]
    yield list(text)
    source = random.Random(f"{seed}{text}")
    for _ in range(random_splits):
        pieces, at = [], 0
        while at < len(text):
            size = source.choice((1, 1, 2, 3, 4, 7, 15))
            pieces.append(text[at : at + size])
            at += size
        yield pieces


def parse(
    spec: FormatSpec | str,
    text: str,
    tools: Sequence[Mapping[str, Any]] = (),
    /,
    *,
    random_splits: int = 5,
    **options: Any,
) -> Message:
    """The folded message. Asserts that every split gives the same events."""
    whole: list[Event] | None = None
    for pieces in splits(text, random_splits=random_splits):
        events = coalesce(run(spec, pieces, tools, **options))
        if whole is None:
            whole = events
        assert events == whole, f"split {pieces} differs"
    return fold(whole or ())


def tool(name: str, required: Sequence[str] = (), /, **types: Any) -> dict[str, Any]:
    """An OpenAI tool. A parameter is a type name or a whole schema."""
    properties = {key: {"type": kind} if isinstance(kind, str) else kind for key, kind in types.items()}
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}

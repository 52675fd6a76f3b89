"""Feeds one text whole, character by character and in random pieces."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Literal

from normalizers import Event, FormatSpec, Message, coalesce, fold, get, normalizer


def run(
    spec: FormatSpec | str, pieces: Iterable[str], tools: Sequence[Mapping[str, Any]] = (), /, **options: Any
) -> list[Event]:
    """Read the pieces. `unknown_tools` isn't the formats' own here, so that a row needs to declare no tools."""
    reason = options.pop("reason", "stop")
    spec = policy(spec, options.pop("unknown_tools", "forward"))
    count = itertools.count()
    parser = normalizer(spec, tools, ids=lambda: f"call_{next(count)}", **options)
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.finish(reason)


@cache
def _policy(spec: FormatSpec, unknown_tools: Literal["refuse", "forward"]) -> FormatSpec:
    return replace(spec, unknown_tools=unknown_tools)


def policy(spec: FormatSpec | str, unknown_tools: Literal["refuse", "forward"]) -> FormatSpec:
    """The format with that policy: the same object each time, since readers keep tables by format."""
    return _policy(get(spec) if isinstance(spec, str) else spec, unknown_tools)


def splits(text: str, *, random_splits: int = 5, seed: int = 7, cuts: bool = False) -> Iterator[list[str]]:
    """The text whole, character by character and in random pieces; with `cuts` also cut in two at each place."""
    yield [text]
    yield list(text)
    if cuts:
        yield from ([text[:at], text[at:]] for at in range(1, len(text)))
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
    cuts: bool = False,
    **options: Any,
) -> Message:
    """The folded message. Asserts that every split gives the same events."""
    whole: list[Event] | None = None
    for pieces in splits(text, random_splits=random_splits, cuts=cuts):
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

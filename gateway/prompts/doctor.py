"""Explains why an engine had to read a prompt again: where a request first differs from the previous turn. No I/O."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from gateway.prompts.blocks import in_common

MAX_TURNS, MAX_BYTES = 16, 8 * 1024 * 1024
"""Limits of what the doctor remembers for one model: conversations (the last turn of each), and bytes."""
SHOWN = 40
"""Characters of a difference that a finding quotes."""

ADVICE: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"x-anthropic-billing-header|cch="), "a line for Anthropic's billing: leave it out"),
    (
        re.compile(r"\d{4}-\d\d-\d\d|\d\d?:\d\d(:\d\d)?|\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*\b"),
        "a date or time: put it at the end of the prompt, or leave it out",
    ),
    (re.compile(r"(?i)^[0-9a-f-]{6,}$"), "a number that changes with each request: leave it out"),
    (re.compile(r"(?i)tokens? (left|remaining|used)|total_tokens"), "a count of tokens: leave it out"),
)
ORDER = "in another order: list them in the same order each time"
REASONING = "the reasoning of an earlier answer is missing: send it back, or turn reasoning off"
_whitespace = re.compile(r"\s+")


class PromptFinding(Struct, frozen=True):
    """place: in the request, such as `tools[3].description characters 118-164`. what: the difference. advice: "" if
    nothing general can be said."""

    place: str
    what: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.what}" + (f" ({self.advice})" if self.advice else "")


class _Turn(Struct, frozen=True):
    tools: bytes
    messages: bytes
    parts: tuple[bytes, ...]
    owner: str

    @property
    def size(self) -> int:
        return 2 * len(self.messages) + len(self.tools)


class Doctor:
    """For one model: compares each request with the previous one of its conversation."""

    def __init__(self) -> None:
        self._turns: OrderedDict[int, _Turn] = OrderedDict()
        self._count = 0

    def compare(self, tools: bytes, messages: bytes, owner: str = "") -> list[PromptFinding]:
        """Where the request's tools and messages differ from the previous turn's; [] if they only continue them.

        Both are JSON arrays, tools may be empty. owner: only requests of the same one are compared. Raises nothing that
        a request can cause.
        """
        if len(messages) + len(tools) > MAX_BYTES // 4:
            return []
        before = next(
            (key for key, turn in reversed(self._turns.items()) if _goes_on(turn, tools, messages, owner)), None
        )
        try:
            turn = _Turn(tools, messages, tuple(bytes(part) for part in _parts(messages)), owner)
            if before is not None:
                found: list[PromptFinding] = []
            else:
                before = self._like(turn.parts, owner)
                found = differences(self._turns[before], turn) if before is not None else []
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return []
        if before is not None:
            del self._turns[before]
        self._count += 1
        self._turns[self._count] = turn
        while len(self._turns) > MAX_TURNS or sum(kept.size for kept in self._turns.values()) > MAX_BYTES:
            self._turns.popitem(last=False)
        return found

    def _like(self, parts: Sequence[bytes], owner: str) -> int | None:
        """The owner's earlier request that shares the most messages with this one, not counting system messages."""
        wanted = _talk(parts)
        best, maximum = None, 0
        for key, turn in self._turns.items():
            if turn.owner == owner and (common := (_talk(turn.parts) & wanted).total()) and common >= maximum:
                best, maximum = key, common
        return best


_parts = msgspec.json.Decoder(list[Raw]).decode
_decode = msgspec.json.Decoder().decode


def _goes_on(turn: _Turn, tools: bytes, messages: bytes, owner: str) -> bool:
    """Whether the messages are those of `turn`, possibly followed by more."""
    if turn.owner != owner or turn.tools != tools or not messages.startswith(turn.messages[:-1]):
        return False
    return messages[len(turn.messages) - 1 : len(turn.messages)] in (b",", b"]")


def _talk(parts: Sequence[bytes]) -> Counter[bytes]:
    return Counter(part for part in parts if b'"system"' not in part and b'"developer"' not in part)


def differences(before: Any, after: Any) -> list[PromptFinding]:
    """The first difference in the tools, and the first in the messages, of two turns."""
    found: list[PromptFinding] = []
    if before.tools != after.tools:
        old, new = (_decode(turn.tools) if turn.tools else [] for turn in (before, after))
        found += _first(_differ("tools", old, new, grows=False))
    old, new = _decode(before.messages), _decode(after.messages)
    return found + _first(_differ("messages", old, new, grows=True))


def _first(findings: Iterator[PromptFinding]) -> list[PromptFinding]:
    found = next(findings, None)
    return [found] if found is not None else []


def _differ(place: str, old: Any, new: Any, *, grows: bool = False) -> Iterator[PromptFinding]:
    """The differences between two JSON values, in their order. grows: a list may have more at its end."""
    if isinstance(old, str) and isinstance(new, str):
        if old != new:
            yield _text(place, old, new)
    elif isinstance(old, list) and isinstance(new, list):
        yield from _lists(place, old, new, grows=grows)
    elif isinstance(old, dict) and isinstance(new, dict):
        yield from _objects(place, old, new)
    elif old != new or type(old) is not type(new):
        yield PromptFinding(place, f"{_quoted(old)} became {_quoted(new)}", _advice(place, str(old), str(new)))


def _lists(place: str, old: list[Any], new: list[Any], *, grows: bool) -> Iterator[PromptFinding]:
    first = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if not _same(a, b)), None)
    if first is None:
        if len(old) > len(new):
            yield PromptFinding(f"{place}[{len(new)}]", "is missing")
        elif len(new) > len(old) and not grows:
            yield PromptFinding(f"{place}[{len(old)}]", "is new")
        return
    one, other = (sorted(map(_written, values[first:])) for values in (old, new))
    if one == other:
        yield PromptFinding(f"{place}[{first}]", "in another order", ORDER)
    elif len(new) < len(old) and any(_same(new[first], value) for value in old[first + 1 :]):
        yield PromptFinding(f"{place}[{first}]", "is missing")
    elif any(_same(old[first], value) for value in new[first + 1 :]):
        yield PromptFinding(f"{place}[{first}]", "is new")
    else:
        yield from _differ(f"{place}[{first}]", old[first], new[first])


def _objects(place: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[PromptFinding]:
    for key in old:
        if key not in new:
            advice = REASONING if key in ("reasoning_content", "reasoning", "thinking") else ""
            yield PromptFinding(f"{place}.{key}", "is missing", advice)
        else:
            yield from _differ(f"{place}.{key}", old[key], new[key])
    for key in new:
        if key not in old:
            yield PromptFinding(f"{place}.{key}", "is new")
    if [*old] != [*new]:
        yield PromptFinding(place, "its keys are in another order", ORDER)


def _text(place: str, old: str, new: str) -> PromptFinding:
    start = in_common(old, new)
    behind = in_common(old[start:][::-1], new[start:][::-1])
    # Whole words say more than the digits that differ, if they are no longer than what is shown.
    first, last = max(start - SHOWN, 0), max(behind - SHOWN, 0)
    while start > first and not old[start - 1].isspace() and old[start - 1] not in ";,(\"'<>":
        start -= 1
    while behind > last and not new[len(new) - behind].isspace() and new[len(new) - behind] not in ";,)\"'<>":
        behind -= 1
    one, other = old[start : len(old) - behind], new[start : len(new) - behind]
    return PromptFinding(
        f"{place} characters {start}-{len(new) - behind}",
        f"{_quoted(one)} became {_quoted(other)}",
        _advice(place, one, other),
    )


def _advice(place: str, old: str, new: str) -> str:
    if "reasoning" in place and not new:
        return REASONING
    return next((advice for pattern, advice in ADVICE if pattern.search(old) or pattern.search(new)), "")


def _same(one: Any, other: Any) -> bool:
    """Compares the order of keys too, since engines see it."""
    return one == other and _written(one) == _written(other)


def _written(value: Any) -> bytes:
    return msgspec.json.encode(value)


def _quoted(value: Any) -> str:
    text = _whitespace.sub(" ", value if isinstance(value, str) else _written(value).decode())
    return f'"{text[:SHOWN]}{"…" if len(text) > SHOWN else ""}"' if text else "nothing"

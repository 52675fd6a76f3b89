"""How many alternatives an engine must follow at once to enforce a JSON Schema by a grammar.

llama.cpp turns the schema into a grammar, and between two tokens of any request follows each possible continuation
in turn: references that double take it years. Pure, and without a time limit: see `pool`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gateway.schema.fault import Unchecked

MAXIMUM = 5_000
"""The most ways in which a value may begin."""
MAX_OPTIONAL = 1_000
"""The most optional properties of an object. The work on a grammar grows with the square of an object's, and with the
number of objects: of several, the squares add up to no more than the square of this."""
MAX_PATHS = 100_000
"""Ways through the next LONG_TOKEN characters of a pattern: llama.cpp follows them all for each token that it tries."""
LONG_TOKEN = 8
MAX_TIMES = 2_000
"""Repetitions of a part; llama.cpp takes no more."""

# Keywords with schemas of values that lie inside the value.
_INSIDE = ("additionalProperties", "items", "additionalItems", "contains")
_PARTS = ("anyOf", "oneOf", "allOf")
_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\?:)?|\{(\d{0,9})(,?)(\d{0,9})\}|.", re.DOTALL)
_LONGEST_PATTERN = 100


def measure(schemas: Sequence[Any]) -> None:
    """Raises Unchecked for schemas that would keep an engine busy. They need not be valid."""
    optional = 0
    for schema in schemas:
        ways = _Ways(schema)
        ways.value(schema)
        optional += ways.optional
        if ways.maximum > MAXIMUM:
            raise Unchecked(f"a value could begin in more than {MAXIMUM} ways")
    if optional > MAX_OPTIONAL**2:
        raise Unchecked(
            f"it has more than {MAX_OPTIONAL} properties that aren't required, or many objects of as much work"
        )


class _Ways:
    """maximum: the ways in which the value with the most of them may begin, up to MAXIMUM + 1. optional: the squares
    of the numbers of properties that each object may leave out."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._references: dict[str, int] = {}
        self.maximum = 0
        self.optional = 0

    def value(self, schema: Any) -> int:
        """The ways in which a value may begin."""
        if not isinstance(schema, Mapping):
            return 1
        if isinstance(reference := schema.get("$ref"), str):
            return self._reference(reference)
        self._inside(schema)
        if isinstance(pattern := schema.get("pattern"), str) and paths(pattern) > MAX_PATHS:
            shown = pattern[:_LONGEST_PATTERN]
            raise Unchecked(f"its pattern {shown!r} has more than {MAX_PATHS} ways through {LONG_TOKEN} characters")
        found = len(_list(schema.get("enum"))) or len(_list(schema.get("type"))) or 1
        parts = [self.value(part) for keyword in _PARTS for part in _list(schema.get(keyword))]
        found = min(max(found, sum(parts)), MAXIMUM + 1)
        self.maximum = max(self.maximum, found)
        return found

    def _reference(self, reference: str) -> int:
        if reference not in self._references:
            self._references[reference] = 1  # a circle in which nothing begins: engines refuse it
            self._references[reference] = self.value(self._target(reference))
        return self._references[reference]

    def _target(self, reference: str) -> Any:
        node = self._root
        for name in reference.removeprefix("#").strip("/").split("/") if reference != "#" else ():
            name = name.replace("~1", "/").replace("~0", "~")
            if isinstance(node, list) and name.isdecimal() and len(name) < 9 and int(name) < len(node):
                node = node[int(name)]
            else:
                node = node.get(name) if isinstance(node, Mapping) else None
        return node

    def _inside(self, schema: Mapping[str, Any]) -> None:
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            required = {name for name in _list(schema.get("required")) if isinstance(name, str)}
            self.optional += len(properties.keys() - required) ** 2
            for inner in properties.values():
                self.value(inner)
        for keyword in _INSIDE:
            self.value(schema.get(keyword))
        for inner in (*_list(schema.get("prefixItems")), *_list(schema.get("items"))):
            self.value(inner)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


# Patterns

Paths = tuple[int, ...]
"""At one place of a pattern: the ways through the next 0, 1, … LONG_TOKEN characters, whichever they are."""

Part = Callable[[Paths], Paths]
"""A part of a pattern: maps the paths after it to those before it."""

_END: Paths = (1,) * (LONG_TOKEN + 1)
_NONE: Paths = (0,) * (LONG_TOKEN + 1)


def paths(pattern: str) -> int:
    """The ways through the next LONG_TOKEN characters where a pattern has the most, up to MAX_PATHS + 1.

    Raises Unchecked for one that can't be read. llama.cpp ignores a pattern that isn't anchored at both ends.
    """
    if not (pattern.startswith("^") and pattern.endswith("$")):
        return 1
    reader = _Pattern(pattern[1:-1])
    reader.whole()(_END)
    return reader.maximum


class _Pattern:
    """maximum: the most ways that any place has had so far."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._pieces: Iterator[re.Match[str]] = _PIECE.finditer(text)
        self._piece: re.Match[str] | None = None
        self.maximum = 1
        self._next()

    def _next(self) -> None:
        self._piece = next(self._pieces, None)

    def whole(self) -> Part:
        found = self._choice()
        if self._piece is not None:
            raise Unchecked(f"its pattern {self._text[:_LONGEST_PATTERN]!r} has a parenthesis too many")
        return found

    def _choice(self) -> Part:
        branches = [self._sequence()]
        while self._piece is not None and self._piece[0] == "|":
            self._next()
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else lambda after: self._sum(*(branch(after) for branch in branches))

    def _sequence(self) -> Part:
        parts: list[Part] = []
        while (piece := self._piece) is not None and piece[0] not in ("|", ")"):
            self._next()
            if piece[0] in ("(", "(?:"):
                parts.append(self._group())
            elif piece[0] in ("*", "+", "?") or (piece[0][0] == "{" and len(piece[0]) > 1):
                if parts:
                    parts[-1] = self._repeated(parts[-1], *_times(piece))
            else:
                parts.append(_character)

        def sequence(after: Paths) -> Paths:
            for part in reversed(parts):
                after = self._sum(part(after))
            return after

        return sequence

    def _group(self) -> Part:
        found = self._choice()
        if self._piece is None:
            raise Unchecked(f"its pattern {self._text[:_LONGEST_PATTERN]!r} leaves a parenthesis open")
        self._next()
        return found

    def _repeated(self, part: Part, low: int, high: int | None) -> Part:
        def repeated(after: Paths) -> Paths:
            first = _NONE if high is None else after
            times = LONG_TOKEN + 1 if high is None else high - low
            return _again(part, _again(lambda behind: self._sum(part(behind), after), first, times), low)

        return repeated

    def _sum(self, *all: Paths) -> Paths:
        found = tuple(min(sum(each), MAX_PATHS + 1) for each in zip(*all, strict=True))
        self.maximum = max(self.maximum, found[-1])
        return found


def _character(after: Paths) -> Paths:
    return 1, *after[:-1]


def _times(piece: re.Match[str]) -> tuple[int, int | None]:
    match piece[0]:
        case "*":
            return 0, None
        case "+":
            return 1, None
        case "?":
            return 0, 1
    low = int(piece[1] or 0)
    high = int(piece[3]) if piece[3] else None if piece[2] else low
    return low, high


def _again(step: Part, value: Paths, times: int) -> Paths:
    """Applies `step` so often, or until nothing changes any more."""
    for _ in range(min(times, MAX_TIMES)):
        before, value = value, step(value)
        if value == before:
            break
    return value

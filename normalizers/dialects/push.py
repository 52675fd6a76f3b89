"""A push parser over the LALR tables that Lark makes of a grammar: validation alone, no tree.

It takes the same tokens as Lark's own ``InteractiveParser`` and refuses the same ones, at a third of the
price: nothing is built on a reduction, and the tables are plain strings and numbers.
"""

from __future__ import annotations

from lark import Lark
from lark.parsers.lalr_analysis import Shift

Action = int | tuple[int, str]
"""Shift to a state, or reduce that many symbols to a nonterminal."""


class Tables:
    """Of a Lark grammar with one start symbol."""

    __slots__ = ("actions", "start")

    def __init__(self, grammar: Lark) -> None:
        conf = grammar.parse_interactive().parser_state.parse_conf
        self.start: int = conf.start_state
        self.actions: dict[int, dict[str, Action]] = {
            state: {
                str(symbol): target if action is Shift else (len(target.expansion), str(target.origin.name))
                for symbol, (action, target) in row.items()
            }
            for state, row in conf.states.items()
        }


class PushParser:
    __slots__ = ("_actions", "_stack")

    def __init__(self, tables: Tables) -> None:
        self._actions = tables.actions
        self._stack = [tables.start]

    def feed(self, kind: str) -> bool:
        """Take a token of that kind; False if it cannot stand here, and then the parser is of no more use."""
        actions = self._actions
        stack = self._stack
        while True:
            action = actions[stack[-1]].get(kind)
            if type(action) is int:
                stack.append(action)
                return True
            if action is None:
                return False
            size, name = action  # type: ignore[misc]
            if size:
                del stack[-size:]
            goto = actions[stack[-1]][name]
            assert type(goto) is int
            stack.append(goto)

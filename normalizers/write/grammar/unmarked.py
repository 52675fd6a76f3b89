"""Calls without marks: an answer that begins as one can only go on as nothing but complete calls.

Such an answer begins, after white space, with a fence or none, a list's bracket or none, and an object whose first key
names a declared tool: see `normalizers.read.BEGINNING`. Any other text is free, JSON that is no call, for example.
"""

from __future__ import annotations

import json
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from normalizers.read import (
    ARGUMENT_KEYS,
    CALL_KEYS,
    NAME_KEYS,
    OF_FENCE,
    OF_FUNCTION,
    OF_LIST,
    OF_NAME,
    OF_OBJECT,
    may_be_told,
)
from normalizers.spec import MAX_CALLS
from normalizers.write.grammar.automaton import Moves, moves, quoted, state_names
from normalizers.write.grammar.gbnf import either, literal, none_of, one_of
from normalizers.write.grammar.lark import Lexeme
from normalizers.write.grammar.rules import NO_CONTROL
from normalizers.write.grammar.schemas import Schema
from normalizers.write.grammar.values import Values

_NAME_KEYS = sorted(NAME_KEYS)
_FENCE = "```"
_BLANKS = " \t\r\n"
_INFO = string.ascii_letters + string.digits + "_+-. \t"
"""Characters of what may stand behind a fence: `json`, `tool_call`."""

_WS = r"[ \t\r\n]*"
_MAX_DEPTH = 32
"""Brackets of an expression within each other."""

_CALL = "call"
"""Where a text becomes a call: it is free no longer."""


def begin_unmarked(
    rules: Values,
    start: str,
    free: str,
    functions: Sequence[Schema],
    *,
    after: Mapping[str, str],
    reasoning: Mapping[str, str],
    several: bool,
    results: bool,
) -> bool:
    """Adds the rule `start` of an answer: nothing but calls without marks, or any other text.

    free: the rule of free text; each mark in it is followed by what `after` has. reasoning: what follows a mark of
    `after` if only white space stands before it. several: more than one call may come. results: another object may
    follow the calls. False if no tool has a name that can be told.
    """
    known = {function["name"]: function for function in functions}
    tools = {_inside(name): tool for name, tool in known.items() if may_be_told(name, after)}
    if not tools:
        return False
    python, rules.python = rules.python, False
    calls = _Calls(rules, tools, several=several, results=results)
    rules.python = python
    beginnings = _beginnings(tools, reasoning)
    rules.add_states(beginnings.states(start, free, after, reasoning, also=calls.answers()))
    rules.add_lark(start, _in_lark(rules, start, tools, after, reasoning, calls))
    return True


def unmarked_calls(rules: Values, functions: Sequence[Schema], *, several: bool) -> str:
    """The expression of answers that are nothing but calls without marks; "" if no tool's name can be told.

    Nothing follows the calls, of which there are at most MAX_CALLS.
    """
    tools = {_inside(function["name"]): function for function in functions if may_be_told(function["name"], ())}
    if not tools:
        return ""
    python, rules.python = rules.python, False
    answers = _Calls(rules, tools, several=several, results=False, bounded=True).answers(f"{rules.shared('ws')}?")
    rules.python = python
    return answers


def _inside(text: str) -> str:
    """A string of JSON without its quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _quoted(text: str) -> str:
    """A terminal for a string of JSON."""
    return literal(f'"{text}"')


class _Calls:
    """Rules for answers that are nothing but calls. tools: by name, as it is spelled within its quotes. bounded: there
    are at most MAX_CALLS."""

    def __init__(
        self, rules: Values, tools: Mapping[str, Schema], *, several: bool, results: bool, bounded: bool = False
    ) -> None:
        self._rules = rules
        self._several = several
        self._ws, self._comma = rules.shared("ws"), rules.shared("comma")
        words = either([rules.constant(word) for word in sorted(ARGUMENT_KEYS)])
        key = rules.rule("key", f"{words} {rules.shared('colon')}")
        given = rules.rule("given", f"{self._comma} {key}")
        each = []
        for name, tool in tools.items():
            rules.exact = tool.get("strict") is True
            arguments = rules.rule("arguments", rules.arguments(tool, all_required=True))
            rules.exact = False
            each.append(f"{literal(name + chr(34))} {given} {arguments}")
        self.named = rules.rule("named", f"{either(each)} {self._ws}?")
        """From a name, without its opening quote, to the end of the arguments."""
        between = f"{self._ws}? ([,;] {self._ws}?)?"
        call = rules.rule("object", self._call(f"{self._ws}?"))
        often = f"{{0,{MAX_CALLS - 1}}}" if bounded else "*"
        self._more = f" ({between} {call}){often}" if several else ""
        self._more_in_list = f" ({self._comma} {call}){often}" if several else ""
        # Some models go on with what they take for the call's result.
        self._last = f"({self._ws}? {self._result()})? {self._ws}?" if results else f"{self._ws}?"

    def answers(self, blanks: str = "") -> str:
        """All of these answers. blanks: the white space up to a name, instead of any, which only GBNF has."""
        body, rules = self._rules.reserved("calls"), self._rules
        add = rules.add if blanks else lambda name, rule: rules.add_states({name: rule})
        if not blanks:
            blanks = rules.reserved("blanks")
            add(blanks, f"{one_of(_BLANKS)}*")
        call = self._call(blanks)
        listed = f'"[" {blanks} {call}{self._more_in_list} {self._ws}? "]"'
        add(body, f"({call}{self._more} | {listed})")
        fence = rf'{literal(_FENCE)} {one_of(_INFO)}* "\x0d"? "\x0a"'
        return f"{blanks} ({body} | {fence} {blanks} {body} {self._ws}? {literal(_FENCE)}) {self._last}"

    def after_name(self, *, nested: bool, listed: bool, fenced: bool) -> str:
        """The rest of an answer behind `named`, by what stands before the name."""
        closing = f'"}}" {self._ws}? "}}"' if nested else '"}"'
        more = f'{self._more_in_list} {self._ws}? "]"' if listed else self._more
        fence = f" {self._ws}? {literal(_FENCE)}" if fenced else ""
        return f"{closing}{more}{fence} {self._last}"

    def _call(self, ws: str) -> str:
        """A call's object. ws: the white space up to the name."""
        colon = f'{ws} ":" {ws}'
        named = rf'{either(list(map(_quoted, _NAME_KEYS)))} {colon} "\"" {self.named} "}}"'
        kind = f'({_quoted("type")} {colon} {_quoted("function")} {ws} "," {ws})*'
        nested = f'{_quoted("function")} {colon} "{{" {ws} {named} {self._ws}? "}}"'
        return f'"{{" {ws} {kind} ({named} | {nested})'

    def _result(self) -> str:
        """An object whose first key is none of a call's."""
        rules, words = self._rules, sorted(CALL_KEYS)
        key, inner, rest = (rules.reserved(hint) for hint in ("key", "other", "rest"))
        others = _Automaton()
        for word in words:
            others.accept(others.path(others.start, word + '"'), _CALL)
        rules.add_states({key: rf'"\"" {inner}', rest: rf'[^"\\{NO_CONTROL}]* "\""'})
        rules.add_states(others.states(inner, rest, {}, {}, end='"'))
        rules.lexemes[key] = Lexeme(rf'"[^"\\{NO_CONTROL}]*"', f'"({"|".join(words)})"')
        member = f"{key} {rules.shared('colon')} {rules.shared('value')}"
        more = f"({self._comma} {rules.shared('member')})* {self._comma}?"
        return rules.rule("result", f'"{{" {self._ws}? ({member} {more})? {self._ws}? "}}"')


def _in_lark(
    rules: Values,
    start: str,
    tools: Iterable[str],
    after: Mapping[str, str],
    reasoning: Mapping[str, str],
    calls: _Calls,
) -> str:
    """The rule of an answer for Lark. A lexeme ends before the first call's name, and text of another kind goes on."""
    thoughts = "|".join(map(quoted, reasoning))
    choices = [rules.free_lexemes(start, after, f"{_WS}({thoughts})(?s:.*)" if thoughts else "")]
    for number, (mark, follows) in enumerate(reasoning.items()):
        rules.lexemes[f"{start}-thought-{number}"] = Lexeme(f"{_WS}{quoted(mark)}", lazy=True)
        choices.append(f"{start}-thought-{number} {follows}")
    unnamed = f"{start}-unnamed"
    names = "|".join(map(quoted, tools))
    rules.add_lark(unnamed, rules.free_lexemes(unnamed, after, f'({names})"(?s:.*)'))
    for at in range(8):
        nested, listed, fenced = bool(at & 1), bool(at & 2), bool(at & 4)
        beginning = f"{_WS}{OF_FENCE * fenced}{OF_LIST * listed}{OF_OBJECT}{OF_FUNCTION * nested}{OF_NAME}"
        rules.lexemes[f"{start}-call-{at}"] = Lexeme(beginning, lazy=True)
        rest = calls.after_name(nested=nested, listed=listed, fenced=fenced)
        choices.append(f"{start}-call-{at} ({unnamed} | {calls.named} {rest})")
    return " | ".join(choices)


def _beginnings(names: Iterable[str], reasoning: Iterable[str]) -> _Automaton:
    """An answer up to the end of its first call's name, as `normalizers.read.BEGINNING` has it, or up to reasoning."""
    found = _Automaton()
    line, item, outer, inner, key, name = (found.node() for _ in range(6))
    for mark in reasoning:
        found.accept(found.path(found.start, mark), mark)
    info = found.path(found.start, _FENCE)
    found.edge(info, _INFO, info)
    for ending in ("\n", "\r\n"):
        found.path(info, ending, line)
    for before in (found.start, line):
        found.path(before, "[", item)
    for before in (found.start, line, item):
        found.path(before, "{", outer)
    found.spaced(outer, ('"type"', ":", '"function"', ","), outer)
    found.spaced(outer, ('"function"', ":", "{"), inner)
    for before in (outer, inner):
        for word in _NAME_KEYS:
            found.path(before, f'"{word}"', key)
    found.spaced(key, (":", '"'), name)
    for node in (found.start, line, item, outer, inner, key):
        found.edge(node, _BLANKS, node)
    for text in names:
        found.accept(found.path(name, text + '"'), _CALL)
    return found


_Nodes = frozenset[int]
_State = tuple[_Nodes, str]
"""The nodes of an automaton that a text leads to, and the beginning of a mark that it ends with."""


class _Automaton:
    """Texts as a graph: each node has edges to others, with the characters that lead there."""

    def __init__(self) -> None:
        self._edges: list[list[tuple[str, int]]] = []
        self._accepted: dict[int, str] = {}
        self.start = self.node()

    def node(self) -> int:
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, at: int, chars: str, to: int) -> None:
        self._edges[at].append((chars, to))

    def path(self, at: int, text: str, to: int | None = None) -> int:
        """Adds the nodes of a literal up to a new one, or to `to`; returns that."""
        to = self.node() if to is None else to
        for char in text[:-1]:
            between = self.node()
            self.edge(at, char, between)
            at = between
        self.edge(at, text[-1:], to)
        return to

    def spaced(self, at: int, texts: Sequence[str], to: int) -> None:
        """The same for several literals with white space between them."""
        for text in texts[:-1]:
            at = self.path(at, text)
            self.edge(at, _BLANKS, at)
        self.path(at, texts[-1], to)

    def accept(self, at: int, label: str) -> None:
        self._accepted[at] = label

    def _steps(self, nodes: _Nodes) -> dict[str, _Nodes]:
        reached: dict[str, set[int]] = {}
        for node in nodes:
            for chars, to in self._edges[node]:
                for char in chars:
                    reached.setdefault(char, set()).add(to)
        return {char: frozenset(to) for char, to in reached.items()}

    def states(
        self,
        name: str,
        other: str,
        after: Mapping[str, str],
        labels: Mapping[str, str],
        *,
        end: str = "",
        also: str = "",
    ) -> dict[str, str]:
        """GBNF rules for the texts of which no beginning is accepted; `name` is the first rule.

        other: the rule of `states` for the text from a character on that leaves the automaton, with `after` for what
        follows each mark. labels: what follows a beginning that is accepted under this label; none for any other label.
        end: the character that ends the text; without it, the text may end anywhere. also: another choice at the start.
        """
        table = moves(tuple(after))
        others = state_names(other, table)
        first: _State = (frozenset((self.start,)), "")
        choices = dict(self._explored(first, dict(table), others, after, labels))
        uses = Counter(target for targets in choices.values() for target in {*targets.values()} if target in choices)
        named = [first, *(state for state in choices if uses[state] > 1 and state != first)]
        names = {state: f"{name}-{number}" if number else name for number, state in enumerate(named)}
        never = rf"\\{NO_CONTROL}" if end else ""
        leaving = {char: others[mark] for char, mark in table[0][1] if mark in others}
        waiting = [*names]

        def written(state: _State, depth: int = 0) -> str:
            """The expression of a state. One that a single other leads to stands within that one's."""
            left = choices[state]
            found = [f"{none_of((*left, *end), never)}{other}"]
            if leaving and leaving.items() <= left.items():
                left = {char: target for char, target in left.items() if char not in leaving}
                found.append(f"{other}0")
            to: dict[_State | str, list[str]] = {}
            for char, target in left.items():
                to.setdefault(target, []).append(char)
            for target, chars in to.items():
                if isinstance(target, tuple):
                    if target not in names and depth == _MAX_DEPTH:
                        names[target] = f"{name}-{len(names)}"
                        waiting.append(target)
                    target = names.get(target) or written(target, depth + 1)
                if target != _CALL:
                    found.append(one_of(chars) + target)
            if end and end not in choices[state]:
                found.append(literal(end))
            return f"({'|'.join(found)})" + ("" if end else "?")

        rules = {}
        while waiting:
            state = waiting.pop()
            rules[names[state]] = written(state)
        if leaving:
            rules[f"{other}0"] = "|".join(literal(char) + target for char, target in leaving.items())
        if also:
            rules[name] += f" | {also}"
        return rules

    def _explored(
        self,
        first: _State,
        marks: Mapping[str, Moves],
        others: Mapping[str, str],
        after: Mapping[str, str],
        labels: Mapping[str, str],
    ) -> Iterator[tuple[_State, dict[str, _State | str]]]:
        """Each state, and where each character leads that doesn't lead to the start of other text: to a state, or to
        what follows."""
        waiting, seen = [first], {first}
        while waiting:
            state = waiting.pop()
            nodes, mark = state
            steps, within = self._steps(nodes), dict(marks[mark])
            found: dict[str, _State | str] = {}
            for char in sorted({*steps, *within}):
                to, reached = steps.get(char, frozenset()), within.get(char, "")
                label = next((self._accepted[node] for node in to if node in self._accepted), "")
                if label:
                    found[char] = labels.get(label, _CALL)
                elif reached in after:
                    found[char] = after[reached]
                elif not to:
                    found[char] = others[reached]
                else:
                    found[char] = target = (to, reached)
                    if target not in seen:
                        seen.add(target)
                        waiting.append(target)
            yield state, found

"""The rules of one grammar: a table of GBNF expressions by name, and the same as lexemes for Lark's syntax."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from normalizers.write.grammar.automaton import ANY, NO_SENSE, holding, quoted, states
from normalizers.write.grammar.gbnf import INT_DIGITS, literal
from normalizers.write.grammar.lark import Lexeme, to_lark

MAX_TEXT = 1 << 20
"""Characters of one grammar."""

NO_CONTROL = "\\x00-\\x1f\\x7f"
"""Control characters as they stand in a class."""

MARK_SIZE = 8
"""Characters of a mark that strings exclude: its beginning is as unlikely in a value as all of it, and needs fewer
rules."""

_JSON_ESCAPE = r'"\\" (["\\/bfnrt] | "u" code)'
_PYTHON_ESCAPE = r'"\\" (["\\bfnrt] | "u" code)'
_SINGLE_ESCAPE = r'"\\" ([\x27\\bfnrt] | "u" code)'
# What follows may not begin a mark, and is no half of a surrogate pair.
_ANY_ESCAPE = r'"\\" ([^uUN<\x5b\x00-\x08\x0b\x0c\x0e-\x1f\x7f] | "u" code)'
_CODE = "([0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2})"
_ESCAPES = {
    _JSON_ESCAPE: rf'\\(["\\\x2fbfnrt]|u{_CODE})',
    _PYTHON_ESCAPE: rf'\\(["\\bfnrt]|u{_CODE})',
    _SINGLE_ESCAPE: rf"\\(['\\bfnrt]|u{_CODE})",
    _ANY_ESCAPE: rf"\\([^uUN<\x5b\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|u{_CODE})",
}

_ESCAPE_RULES = {
    _JSON_ESCAPE: "escape",
    _PYTHON_ESCAPE: "python-escape",
    _SINGLE_ESCAPE: "python-single-escape",
    _ANY_ESCAPE: "loose-escape",
}

_NAME = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|([a-zA-Z][\w-]*)')


_SHARED = {
    # Excludes lone surrogates.
    "code": "[0-9a-cefA-CEF] hex{3} | [dD] [0-7] hex{2}",
    "hex": "[0-9a-fA-F]",
    "escape": _JSON_ESCAPE,
    "integer": f'"-"? ("0" | [1-9] [0-9]{{0,{INT_DIGITS}}})',
    "number": f'integer ("." [0-9]{{1,{INT_DIGITS}}})? ([eE] [-+]? [0-9]{{1,2}})?',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "array": '"[" (value (", " value)*)? "]"',
    "object": '"{" (member (", " member)*)? "}"',
    "member": 'string ": " value',
    "value": "string | number | boolean | null | array | object",
    "ws": r'" "{1,2} | ("\x0a" | "\x0d\x0a"){1,2} [ \t]{0,32}',
    "comma": 'ws? "," ws?',
    "colon": 'ws? ":" ws?',
    "loose-escape": _ANY_ESCAPE,
    "loose-integer": "integer",
    "loose-number": "number",
    "loose-string": "double | single",
    "loose-boolean": '"true" | "false" | "True" | "False"',
    "loose-null": '"null" | "None"',
    "loose-array": '"[" ws? (loose-value (comma loose-value)* comma?)? ws? "]"',
    "loose-object": '"{" ws? (loose-member (comma loose-member)* comma?)? ws? "}"',
    "loose-member": "(double | single) colon loose-value",
    "loose-value": "loose-string | number | loose-boolean | loose-null | loose-array | loose-object",
}
_SPACED = {'"[" (': '"[" ws? (', '"{" (': '"{" ws? (', ')? "]"': ')? ws? "]"', ')? "}"': ')? ws? "}"'}
"""Where white space may stand within the brackets of exact values."""
_QUOTED = {
    "string": ('"', _JSON_ESCAPE),
    "double": ('"', _ANY_ESCAPE),
    "single": ("'", _ANY_ESCAPE),
    "three-double": ('"' * 3, _ANY_ESCAPE),
    "three-single": ("'" * 3, _ANY_ESCAPE),
    "python-double": ('"', _PYTHON_ESCAPE),
    "python-single": ("'", _SINGLE_ESCAPE),
}
_IN_PYTHON = ("escape", "string", "boolean", "null", "array", "object", "member", "value")
_LOOSE_IN_PYTHON = ("loose-string", "loose-array", "loose-object", "loose-member", "loose-value")


def _in_python(body: str) -> str:
    """The same expression with the rules for Python's spelling."""
    names = (*_LOOSE_IN_PYTHON, *_IN_PYTHON)
    return re.sub(rf"(?<![\w\"-])({'|'.join(names)})(?![\w\"-])", r"python-\1", body)


_SHARED |= {f"python-{name}": _in_python(_SHARED[name]) for name in (*_IN_PYTHON, *_LOOSE_IN_PYTHON) if name in _SHARED}
_SHARED |= {
    "python-escape": _PYTHON_ESCAPE,
    "python-single-escape": _SINGLE_ESCAPE,
    "python-string": "python-double",
    "python-boolean": '"True" | "False"',
    "python-null": '"None"',
    "python-loose-string": "double | single | three-double | three-single",
    "bare-key": "[a-zA-Z_$] [a-zA-Z0-9_.$-]{0,63}",
    "bare-member": 'bare-key ": " bare-value',
    "bare-array": '"[" (bare-value (", " bare-value)*)? "]"',
    "bare-object": '"{" (bare-member (", " bare-member)*)? "}"',
    "bare-value": "bare-string | number | boolean | bare-null | bare-array | bare-object",
    "bare-null": '"null" | "None"',
}


class TooLarge(Exception):
    """The grammar grows beyond its bound; the message says so."""


class Rules:
    """The rules written so far, by name.

    python: spell values as Python literals, not as JSON. marks: literals that no string may hold. limit: characters of
    all rules; one more raises TooLarge. exact: write values in one spelling, as a schema has them; otherwise in every
    spelling that the readers take. `python` and `exact` may change from one rule to the next. comma, colon, quotes: of
    exact values, see `Layout` and `bare_quotes`; without a comma there may be white space. any_quote: Python's strings
    may stand in either kind of quotes.
    """

    def __init__(
        self,
        *,
        python: bool,
        marks: Iterable[str] = (),
        limit: int = MAX_TEXT,
        comma: str | None = ", ",
        colon: str = ": ",
        quotes: tuple[str, str] | None = None,
        any_quote: bool = False,
    ) -> None:
        self.python = python
        self.exact = True
        self.quotes = quotes
        self._any_quote = any_quote
        self.separators = comma or ", ", colon
        self._spaced = comma is None
        self.marks = tuple(dict.fromkeys(mark[:MARK_SIZE] for mark in marks))
        self._limit = self._left = limit
        self._rules: dict[str, str] = {}
        self._by_body: dict[str, str] = {}
        """The name of the rule that `rule` added with that body."""
        self._numbers: dict[str, int] = {}
        """The last number of each name that several rules wanted."""
        self._gbnf_alone: set[str] = set()
        self._lark_alone: dict[str, str] = {}
        self.lexemes: dict[str, Lexeme] = {}

    def text(self, root: str) -> str:
        """All rules as GBNF."""
        return "".join(f"{name} ::= {body}\n" for name, body in [("root", root), *self._rules.items()])

    def lark(self, root: str) -> str:
        """All rules in Lark's syntax."""
        left_out = {*self._gbnf_alone, *self.lexemes}
        rules = {name: body for name, body in self._rules.items() if name not in left_out}
        return to_lark(root, {**rules, **self._lark_alone}, self.lexemes)

    def take(self, other: Rules, prefix: str, expression: str) -> str:
        """Take over another grammar's rules under a prefix; returns its expression with their new names."""

        def renamed(body: str) -> str:
            return _NAME.sub(lambda match: f"{prefix}{match[1]}" if match[1] else match[0], body)

        for name, body in other._rules.items():
            self.add(prefix + name, renamed(body))
        self._gbnf_alone |= {prefix + name for name in other._gbnf_alone}
        self._lark_alone |= {prefix + name: renamed(body) for name, body in other._lark_alone.items()}
        self.lexemes |= {prefix + name: lexeme for name, lexeme in other.lexemes.items()}
        return renamed(expression)

    def shared(self, name: str) -> str:
        """Add a rule that every grammar may use, and those that it needs."""
        if not self.exact and f"loose-{name}" in _SHARED:
            name = f"loose-{name}"
        elif self.exact and self.quotes and (name == "string" or f"bare-{name}" in _SHARED):
            name = f"bare-{name}"
        if self.python and f"python-{name}" in (*_SHARED, *_QUOTED):
            name = f"python-{name}"
        self._need(name)
        return name

    def _need(self, name: str) -> None:
        if name in self._rules or name in self.lexemes:
            return
        if name in _QUOTED:
            self._add_quoted(name, *_QUOTED[name])
            return
        if name == "bare-string" and self.quotes:
            opening, closing = self.quotes
            dead = [mark for mark in self.marks if not closing.startswith(mark)]
            self.add(name, f"{literal(opening)} {self.until('text', closing, dead)}")
            return
        body = self._laid_out(_SHARED[name])
        if name == "python-string" and self._any_quote:
            body += " | python-single"
        self.add(name, body)
        for word in re.findall(r"[a-z][a-z-]*", re.sub(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]', " ", body)):
            self._need(word)
        if name == "ws":
            self.lexemes[name] = Lexeme(r" {1,2}|(\r?\n){1,2}[ \t]{0,32}")

    def _laid_out(self, body: str) -> str:
        """The same with the signs between values that this grammar has."""
        body = body.replace('": "', literal(self.separators[1]))
        if '", "' in body:
            body = body.replace('", "', self.between)
        if self._spaced:
            for bare, spaced in _SPACED.items():
                body = body.replace(bare, spaced)
        return body

    @property
    def between(self) -> str:
        """What stands between two members of an exact value."""
        return self.shared("comma") if self._spaced else literal(self.separators[0])

    def bracketed(self, opening: str, members: str, closing: str) -> str:
        """The members of an exact value within brackets."""
        pad = f"{self.shared('ws')}? " if self._spaced else ""
        return f"{literal(opening)} {pad}{members} {pad}{literal(closing)}"

    def add(self, name: str, body: str) -> None:
        """Add a rule of that name. Raises TooLarge."""
        self._rules[name] = body
        self._spend(len(name) + len(body))

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise TooLarge(f"it needs a grammar of more than {self._limit} characters")

    def _add_quoted(self, name: str, quote: str, escape: str) -> None:
        loose = escape == _ANY_ESCAPE
        slashed = _ESCAPE_RULES[escape]
        self._need(slashed)
        plain = NO_SENSE if loose else NO_CONTROL
        written = "\\x22" if quote[0] == '"' else "'"
        chars = f"[^\\\\{plain}{written if len(quote) == 1 else ''}]"
        regex = f"{written * len(quote)}({chars}|{_ESCAPES[escape]})*{written * len(quote)}"
        self.lexemes[name] = Lexeme(regex, holding(self.marks), lazy=len(quote) > 1)
        self.add(name, f"{literal(quote)} {name}-rest")
        self.add_states(states(f"{name}-rest", {quote: ""}, self.marks, escape=slashed, never=plain))

    def until(self, hint: str, end: str, dead: Iterable[str]) -> str:
        """A rule for text up to and with the literal `end`, which holds none of the `dead` ones."""
        name, dead = self._free(hint), tuple(dead)
        self.add_states(states(name, {end: ""}, dead))
        self._gbnf_alone.discard(name)
        self.lexemes[name] = Lexeme(f"{ANY}*{quoted(end)}", holding(dead), lazy=True)
        return name

    def free(self, name: str, after: Mapping[str, str], dead: Iterable[str] = ()) -> str:
        """A rule for any text that may end anywhere, with an expression for what follows each of the literals."""
        dead = tuple(dead)
        self.add_states(states(name, after, dead, may_end=True, never=""))
        self.add_lark(name, self.free_lexemes(name, after, holding(dead)))
        return name

    def free_lexemes(self, name: str, after: Mapping[str, str], but: str) -> str:
        """The same for Lark alone, as an expression. but: a regular expression of the beginnings to leave out."""
        tail = f"{name}-tail"
        self.lexemes[tail] = Lexeme("(?s:.+)", but)
        choices = [f"{tail}?"]
        for number, (mark, follows) in enumerate(after.items()):
            self.lexemes[f"{name}-to-{number}"] = Lexeme(f"(?s:.*){quoted(mark)}", but, lazy=True)
            choices.append(f"{name}-to-{number} {follows}")
        return " | ".join(choices)

    def add_states(self, found: Mapping[str, str]) -> None:
        """Add rules for GBNF alone."""
        for name, body in found.items():
            self.add(name, body)
            self._gbnf_alone.add(name)

    def add_lark(self, name: str, body: str) -> None:
        """Add a rule for Lark alone, in place of that for GBNF if there is one of that name."""
        self._lark_alone[name] = body

    def rule(self, hint: str, body: str) -> str:
        """The name of a rule for `body`: a new one with `hint` in its name, or an earlier one."""
        if (name := self._by_body.get(body)) is None:
            name = self._by_body[body] = self._free(hint)
            self.add(name, body)
        return name

    def reserved(self, hint: str) -> str:
        """The name of a new rule, to be added under it."""
        name = self._free(hint)
        self._rules[name] = ""
        return name

    def _free(self, hint: str) -> str:
        base = name = "x-" + (re.sub(r"[^a-zA-Z0-9]+", "-", hint[:64]).strip("-") or "x")
        number = self._numbers.get(base, 1)
        while name in self._rules:
            number += 1
            name = f"{base}-{number}"
        self._numbers[base] = number
        return name

"""A machine for GBNF as llama.cpp has it: it accepts texts and makes up random ones."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from random import Random

_TOKEN = re.compile(
    r'\s*(?:"((?:\\.|[^"\\])*)"|\[(\^?)((?:\\.|[^\]\\])*)\]|\{(\d+)(,?)(\d*)\}|([()|*?+])|([a-zA-Z][\w-]*))'
)
_CHAR = re.compile(r"\\x([0-9a-fA-F]{2})|\\(.)|([\s\S])")
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r"}
POOL = [*"abceghlnoqtuxy_ADNTZ09.:;,=/-+ \n\t|<>[]{}()'\"\\`@é｜▁漢\U0001f600"]
"""What a class that excludes characters stands for when a text is made up."""


@dataclass(frozen=True)
class Chars:
    """A class of characters, by pairs of the first and the last."""

    pairs: tuple[tuple[str, str], ...]
    negated: bool = False

    def __contains__(self, char: str) -> bool:
        return any(low <= char <= high for low, high in self.pairs) is not self.negated

    def some(self, random: Random) -> str | None:
        if self.negated:
            pool = [char for char in POOL if char in self]
            return random.choice(pool) if pool else None
        low, high = random.choice(self.pairs)
        return chr(random.randint(ord(low), ord(high)))


Item = Chars | str
Stack = tuple[Item, ...]
"""What is still to come, the nearest last."""


class Machine:
    def __init__(self, text: str) -> None:
        self._rules: dict[str, list[tuple[Item, ...]]] = {}
        for line in text.splitlines():
            name, body = line.split(" ::= ", 1)
            parser = _Parser(body, self._rules, name)
            self._rules[name] = parser.alternatives()
            assert parser.done, (name, body[parser.at :])
        missing = {
            item for rule in self._rules.values() for one in rule for item in one if isinstance(item, str)
        } - self._rules.keys()
        assert not missing, missing

    @cached_property
    def shortest(self) -> dict[str, int]:
        """The least number of characters of each rule."""
        found = dict.fromkeys(self._rules, 10**6)
        changed = True
        while changed:
            changed = False
            for name, rule in self._rules.items():
                least = min((sum(self._least(item, found) for item in one) for one in rule), default=10**6)
                if least < found[name]:
                    found[name], changed = least, True
        return found

    @staticmethod
    def _least(item: Item, known: dict[str, int]) -> int:
        return known[item] if isinstance(item, str) else 1

    def begin(self) -> set[Stack]:
        return self._expanded([("root",)])

    def _expanded(self, stacks: Iterable[Stack]) -> set[Stack]:
        """The same, each with a class of characters next, or at its end."""
        found: set[Stack] = set()
        waiting, seen = list(stacks), set[Stack]()
        while waiting:
            stack = waiting.pop()
            if stack in seen:
                continue
            seen.add(stack)
            if stack and isinstance(stack[-1], str):
                waiting += [(*stack[:-1], *reversed(one)) for one in self._rules[stack[-1]]]
            else:
                found.add(stack)
        return found

    def step(self, stacks: Iterable[Stack], char: str) -> set[Stack]:
        return self._expanded([s[:-1] for s in stacks if s and isinstance(s[-1], Chars) and char in s[-1]])

    def after(self, text: str) -> set[Stack]:
        stacks = self.begin()
        for char in text:
            stacks = self.step(stacks, char)
        return stacks

    def accepts(self, text: str) -> bool:
        return () in self.after(text)

    def made_up(self, random: Random, begin: str, size: int) -> str:
        """A text that begins so. After `size` more characters it takes the shortest way to an end."""
        text, stacks = begin, self.after(begin)
        assert stacks, begin
        first = len(text)
        while True:
            if len(text) - first >= size:
                stacks = {min(stacks, key=lambda s: (sum(self._least(item, self.shortest) for item in s), repr(s)))}
            elif () in stacks and random.random() < 0.02:
                return text
            stack = random.choice(sorted(stacks, key=repr))
            if not stack:
                if len(stacks) == 1 or len(text) - first >= size:
                    return text
                continue
            item = stack[-1]
            assert isinstance(item, Chars)
            if (char := item.some(random)) is not None:
                text += char
                stacks = self.step(stacks, char)


class _Parser:
    def __init__(self, body: str, rules: dict[str, list[tuple[Item, ...]]], name: str) -> None:
        self._body, self._rules, self._name = body, rules, name
        self.at = 0

    @property
    def done(self) -> bool:
        return not self._body[self.at :].strip()

    def _added(self, alternatives: list[tuple[Item, ...]]) -> str:
        name = f"{self._name}#{len(self._rules)}"
        self._rules[name] = alternatives
        return name

    def alternatives(self) -> list[tuple[Item, ...]]:
        found: list[tuple[Item, ...]] = []
        sequence: list[tuple[Item, ...]] = []
        while match := _TOKEN.match(self._body, self.at):
            literal, negated, chars, low, comma, high, sign, name = match.groups()
            if sign == ")":
                break
            self.at = match.end()
            if literal is not None:
                sequence.append(tuple(Chars(((char, char),)) for char in _unescaped(literal)))
            elif chars is not None:
                sequence.append((Chars(tuple(_pairs(chars)), bool(negated)),))
            elif name:
                sequence.append((name,))
            elif sign == "(":
                sequence.append((self._added(self.alternatives()),))
                assert self._body[self.at] == ")", self._body
                self.at += 1
            elif sign == "|":
                found.append(tuple(item for one in sequence for item in one))
                sequence = []
            else:
                least = int(low) if low else 1 if sign == "+" else 0
                maximum = int(high) if high else 1 if sign == "?" else None if comma or sign else least
                sequence[-1] = self._repeated(sequence[-1], least, maximum)
        return [*found, tuple(item for one in sequence for item in one)]

    def _repeated(self, one: tuple[Item, ...], least: int, maximum: int | None) -> tuple[Item, ...]:
        if maximum is None:
            more = self._added([()])
            self._rules[more] = [(), (*one, more)]
            return one * least + (more,)
        rest: tuple[Item, ...] = ()
        for _ in range(maximum - least):
            rest = (self._added([(), (*one, *rest)]),)
        return one * least + rest


def _char(match: re.Match[str]) -> str:
    code, escaped, char = match.groups()
    if code:
        return chr(int(code, 16))
    return _SIMPLE.get(escaped, escaped) if escaped else char


def _unescaped(text: str) -> list[str]:
    return [_char(match) for match in _CHAR.finditer(text)]


def _pairs(text: str) -> Iterable[tuple[str, str]]:
    chars = [(_char(match), match[3] == "-") for match in _CHAR.finditer(text)]
    at = 0
    while at < len(chars):
        last = at + 2 if at + 2 < len(chars) and chars[at + 1][1] else at
        yield chars[at][0], chars[last][0]
        at = last + 1

"""Loose JSON: reads one object as a model writes it, piece by piece, and repairs what is unambiguous.

Repaired: Python's constants and quotes, typographic quotes, ``=``, ``=>`` and full-width signs for the colon and the
comma, ``;`` for the comma, raw control characters, unknown escapes, trailing commas, and numbers such as ``07`` or
``.5``. Anything else that isn't JSON raises `Malformed`; no value is guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from normalizers.values.literals import CONSTANTS, json_number, json_string_body, python_escape

MAX_DEPTH = 200
"""Brackets within each other, those of a call included."""

_SPACE = re.compile(r"\s*")
_MAX_WORD = 1024
_WORD = re.compile(rf"[\w.+\-$]{{1,{_MAX_WORD}}}")
CURLY = {"“": "”", "”": "”", "„": "“", "‘": "’", "’": "’", "‚": "‘"}
"""Typographic quotes: by the one that opens a string, the one that closes it."""
_STOP = {'"': re.compile(r'["\\\x00-\x1f]').search, "'": re.compile(r"['\"\\\x00-\x1f]").search}
_STOP |= {opening: re.compile(rf'[{opening}{closing}"\\\x00-\x1f]').search for opening, closing in CURLY.items()}
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_ESCAPE_START = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_PUNCTUATION = {"{": "LBRACE", "}": "RBRACE", "[": "LSQB", "]": "RSQB", ",": "COMMA", ":": "COLON"}
_CLOSING = {"{": "}", "[": "]", "(": ")"}
_SEPARATORS = {"=": ":", "：": ":", "，": ",", ";": ",", "；": ","}
"""Signs that stand for another."""
_MAX_LOOKAHEAD = 128
_PLAIN_ESCAPES = "'“”„‘’‚"
"""Quotes that need no backslash in JSON."""
_ENDS = ("comma or end", "key or end", "value or end")
_ANY_KEY = re.compile(rf"[^:：=,，{{}}\"<\n]{{1,{_MAX_WORD}}}")
"""A key without quotes: up to its colon, but not over what may end or begin anything else."""


@cache
def _verbatim_stop(mark: str) -> Callable[..., re.Match[str] | None]:
    return re.compile(rf'[{re.escape(mark)}"\\\x00-\x1f]').search


@dataclass(frozen=True, slots=True)
class Notation:
    """How an object's notation differs from JSON."""

    quotes: tuple[tuple[str, str], ...] = ()
    """Pairs of literals that may also surround a string; nothing within them is an escape."""
    bare_keys: bool = False
    """Keys, and words that aren't constants, are strings without quotes. Models that write these also put the whole
    object in round brackets, and leave out a comma where the value before it has a certain end."""


JSON = Notation()


class Malformed(Exception):
    """The text can't be read without guessing. `code` names the reason in the warning."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code
        self.pos: int | None = None
        """Where reading stopped in the current text, if the reader knows."""


class TokenWriter(Protocol):
    """Takes the tokens of an object in their order."""

    def token(self, kind: str, text: str) -> None:
        """Take a word, a number or a sign. Raises `Malformed`."""

    def open_string(self) -> None:
        """A string begins. The next token ends it."""

    def string(self, body: str) -> None:
        """Take more of the open string, as it stands between the quotes of a JSON string."""


class ObjectReader:
    """Reads one object and passes its tokens to a writer: call `step` until `done`.

    With `closes` the object is all the arguments of a call, and its end also closes the call.
    """

    __slots__ = (
        "_close",
        "_closes",
        "_ended",
        "_expect",
        "_inner",
        "_key",
        "_nesting",
        "_notation",
        "_quote",
        "_wait",
        "_writer",
        "done",
        "repaired",
    )

    def __init__(self, writer: TokenWriter, notation: Notation = JSON, *, closes: bool = True) -> None:
        self._closes = closes
        self._writer = writer
        self._notation = notation
        self._nesting: list[str] = []
        self._expect = "object"
        self._quote = ""
        self._inner = 0
        self._key = False
        self._ended = False
        """Only a comma or the end may follow the last value: it isn't a bare word."""
        self._close = ""
        self._wait = False
        self.done = False
        self.repaired = False
        """Whether anything needed repair."""

    def step(self, text: str, pos: int, final: bool) -> int:
        """Read on; returns the position up to which text is consumed. Raises `Malformed`."""
        self._wait = False
        try:
            while not self.done and not self._wait:
                if self._close:
                    pos = self._read_verbatim(text, pos, final)
                elif self._quote in CURLY:
                    pos = self._read_curly(text, pos, final)
                elif self._quote:
                    pos = self._read_string(text, pos, final)
                else:
                    pos = self._read_token(text, pos, final)
        except Malformed as exc:
            exc.pos = pos
            raise
        return pos

    @property
    def depth(self) -> int:
        return len(self._nesting)

    @property
    def stop(self) -> Callable[..., re.Match[str] | None] | None:
        """In a string, the search for any character that isn't plain text."""
        if self._close:
            return _verbatim_stop(self._close[0])
        return _STOP[self._quote] if self._quote else None

    @property
    def in_string(self) -> str:
        return self._quote

    # -- tokens --------------------------------------------------------------------------------

    def _read_token(self, text: str, pos: int, final: bool) -> int:
        space = _SPACE.match(text, pos)
        pos = space.end() if space else pos
        size = len(text)
        if pos == size:
            self._wait = True
            return pos
        char = text[pos]
        kind = _PUNCTUATION.get(char)
        if kind is None and self._notation.bare_keys:
            kind = self._bare_sign(char)
        if kind:
            self._punctuation(kind, char)
            return pos + 1
        if char == '"' or char == "'" or char in CURLY:
            self._begin_string()
            self._quote = char
            self.repaired |= char != '"'
            return pos + 1
        if char in _SEPARATORS:
            return self._separator(text, pos, final)
        for opening, closing in self._notation.quotes:
            if text.startswith(opening, pos):
                self._begin_string()
                self._close = closing
                return pos + len(opening)
            if not final and opening.startswith(text[pos:]):
                self._wait = True
                return pos
        word = (_ANY_KEY if self._notation.bare_keys and self._expect in ("key", "key or end") else _WORD).match(
            text, pos
        )
        if word is None:
            raise Malformed("syntax")
        if word.end() == size and not final and size - pos < _MAX_WORD:
            self._wait = True
            return pos
        self._scalar(word.group())
        return word.end()

    def _bare_sign(self, char: str) -> str | None:
        """What a round bracket stands for, after a comma that is missing before this character."""
        if char == ")":
            return "RBRACE"
        if char == "(" and self._expect == "object":
            return "LBRACE"
        if self._expect == "comma or end" and self._ended and char not in _SEPARATORS:
            self._punctuation("COMMA", ",")
            self.repaired = True
        return None

    def _scalar(self, word: str) -> None:
        writer = self._writer
        if self._expect in ("key", "key or end"):
            self.repaired |= not self._notation.bare_keys
            writer.open_string()
            writer.string(json_string_body(word.strip()))
            self._expect = "colon"
            return
        self._value()
        name = word[0].isalpha() or word[0] == "_"
        if name and self._notation.bare_keys and word not in CONSTANTS:
            writer.open_string()
            writer.string(json_string_body(word))
            self._ended = False
            return
        self.repaired |= name and CONSTANTS.get(word) != word
        writer.token("NAME" if name else "NUMBER", word)

    def _separator(self, text: str, pos: int, final: bool) -> int:
        """Read a sign in place of a colon or a comma."""
        end = pos + 1
        if text[pos] == "=":
            if end == len(text) and not final:
                self._wait = True
                return pos
            end += text[end : end + 1] == ">"
        sign = _SEPARATORS[text[pos]]
        self._punctuation(_PUNCTUATION[sign], sign)
        self.repaired = True
        return end

    def _begin_string(self) -> None:
        self._inner = 0
        self._key = self._expect in ("key", "key or end")
        if self._key:
            self._expect = "colon"
        else:
            self._value()
        self._writer.open_string()

    def _value(self) -> None:
        if self._expect not in ("value", "value or end"):
            raise Malformed("syntax")
        self._expect = "comma or end"
        self._ended = True

    def _punctuation(self, kind: str, char: str) -> None:
        expect = self._expect
        writer = self._writer
        if char in "{[(":
            if expect == "object" and char != "[":
                writer.token("DOUBLESTAR", "")
            else:
                self._value()
            writer.token(kind, char)
            self._nesting.append(_CLOSING[char])
            self._expect = "value or end" if char == "[" else "key or end"
        elif char == ":" and expect == "colon":
            writer.token(kind, char)
            self._expect = "value"
        elif char == "," and expect == "comma or end":
            writer.token(kind, char)
            self._expect = "value or end" if self._nesting[-1] == "]" else "key or end"
        elif expect in _ENDS and self._nesting and self._nesting[-1] == char:
            writer.token(kind, char)
            self._nesting.pop()
            self._expect = "comma or end"
            self._ended = True
            if not self._nesting:
                if self._closes:
                    writer.token("RPAR", ")")
                self.done = True
        else:
            raise Malformed("syntax")

    # -- strings -------------------------------------------------------------------------------

    def _read_string(self, text: str, pos: int, final: bool) -> int:
        quote = self._quote
        found = _STOP[quote](text, pos)
        at = found.start() if found else len(text)
        if at > pos:
            self._writer.string(text[pos:at])
        if found is None:
            self._wait = True
            return at
        char = text[at]
        if char == quote:
            self._quote = ""
            return at + 1
        if char != "\\":
            self.repaired |= char != '"'
            self._writer.string(json_string_body(char))
            return at + 1
        if escape := _ESCAPE.match(text, at):
            self._writer.string(escape.group())
            return escape.end()
        if not final and _ESCAPE_START.match(text, at):
            self._wait = True
            return at
        self.repaired = True
        if (escaped := text[at + 1 : at + 2]) in _PLAIN_ESCAPES and escaped:
            self._writer.string(escaped)
            return at + 2
        self._writer.string("\\\\")
        return at + 1

    def _read_curly(self, text: str, pos: int, final: bool) -> int:
        """Read a string in typographic quotes, which holds pairs of them, apostrophes and straight quotes."""
        opening = self._quote
        closing = CURLY[opening]
        found = _STOP[opening](text, pos)
        at = found.start() if found else len(text)
        if at > pos:
            self._writer.string(text[pos:at])
        if found is None:
            self._wait = True
            return at
        char = text[at]
        if char == closing and not self._inner:
            ends = self._ends(text, at + 1, final)
            if ends is None:
                self._wait = True
                return at
            if ends:
                self._quote = ""
                return at + 1
        elif char == closing:
            self._inner -= 1
        elif char == opening:
            self._inner += 1
        elif char == "\\":
            return self._read_string(text, at, final)
        self._writer.string(json_string_body(char))
        return at + 1

    def _ends(self, text: str, pos: int, final: bool) -> bool | None:
        """Whether a typographic quote before `pos` ends the string, by the sign after it; None for more text."""
        space = _SPACE.match(text, pos, pos + _MAX_LOOKAHEAD)
        at = space.end() if space else pos
        if at == len(text) and at - pos < _MAX_LOOKAHEAD:
            return None if not final else True
        return text[at : at + 1] in ((":", "=", "：") if self._key else (",", "}", "]", "，", ";", "；"))

    def _read_verbatim(self, text: str, pos: int, final: bool) -> int:
        close = self._close
        at = text.find(close, pos)
        if at >= 0:
            self._writer.string(json_string_body(text[pos:at]))
            self._close = ""
            return at + len(close)
        end = len(text) if final else len(text) - partial_close(text, pos, close)
        self._writer.string(json_string_body(text[pos:end]))
        self._wait = True
        return end


def partial_close(text: str, pos: int, close: str) -> int:
    """Length of the longest end of ``text[pos:]`` that begins `close` but isn't all of it."""
    for length in range(min(len(close) - 1, len(text) - pos), 0, -1):
        if text.endswith(close[:length]):
            return length
    return 0


class _JsonWriter:
    """Writes the tokens of an object as JSON text."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self._lead = ""
        self._in_string = False
        self._depth = 0

    def open_string(self) -> None:
        self._put('"')
        self._in_string = True

    def string(self, body: str) -> None:
        self.parts.append(body)

    def token(self, kind: str, text: str) -> None:
        if self._in_string:
            self._in_string = False
            self.parts.append('"')
        match kind:
            case "NAME" | "NUMBER":
                value = CONSTANTS.get(text) if kind == "NAME" else json_number(text)
                if value is None:
                    raise Malformed("expression")
                self._put(value)
            case "LBRACE" | "LSQB":
                self._depth += 1
                if self._depth >= MAX_DEPTH:
                    raise Malformed("nested_too_deep")
                self._put(text)
            case "RBRACE" | "RSQB":
                self._depth -= 1
                self._lead = ""  # a trailing comma
                self.parts.append(text)
            case "COMMA":
                self._lead = ", "
            case "COLON":
                self.parts.append(": ")

    def _put(self, text: str) -> None:
        self.parts.append(self._lead + text)
        self._lead = ""


def read_loosely(text: str) -> str | None:
    """The JSON of one object or array, repaired as `ObjectReader` does, with strings as Python's repr writes them, too;
    None if that isn't enough."""
    writer = _JsonWriter()
    reader = ObjectReader(writer, closes=False)
    source = f'{{"value": {_without_reprs(text)}}}'
    try:
        if reader.step(source, 0, True) != len(source) or not reader.done:
            return None
    except Malformed:
        return None
    return "".join(writer.parts)[len('{"value": ') : -1]


_STRING = re.compile(rf"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|["'{"".join(CURLY)}]""", re.DOTALL)


def _without_reprs(text: str) -> str:
    """The text with JSON in place of the strings that are exactly as Python's repr writes them: `'10\\xa0€'`."""
    parts: list[str] = []
    done = 0
    for found in _STRING.finditer(text) if "\\" in text else ():
        token = found.group()
        if len(token) == 1:
            return text  # what quotes mean here isn't certain
        if "\\" in token and (written := _json_of_repr(token)):
            parts += text[done : found.start()], written
            done = found.end()
    return "".join((*parts, text[done:]))


def _json_of_repr(token: str) -> str | None:
    """The JSON of a string as Python's repr writes it; None if it wouldn't write the token."""
    body: list[str] = []
    pos, end = 1, len(token) - 1
    while pos < end:
        at = token.find("\\", pos, end)
        at = end if at < 0 else at
        body.append(json_string_body(token[pos:at]))
        pos = at
        if at < end:
            escape = python_escape(token, at, True)
            assert escape is not None
            body.append(escape[0])
            pos = escape[1]
    written = f'"{"".join(body)}"'
    return written if repr(json.loads(written)) == token else None

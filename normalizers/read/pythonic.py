"""Calls written as Python: ``[get_weather(city="Paris"), ping()]``, whole or piece by piece.

An incremental lexer cuts the text into tokens, however it was split. LALR tables, which Lark builds of
pythonic.lark, accept or refuse each token, and the `ArgumentWriter` turns it into JSON. Nothing is evaluated:
anything but a literal makes its call fail, and the call's source becomes content.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from normalizers.base import CallWriter
from normalizers.read.json_calls import JsonCalls
from normalizers.read.push import Stack, Tables
from normalizers.read.region import Region, Search
from normalizers.read.scan import MAX_BLANKS, Wait, skip_space
from normalizers.spec import FormatSpec
from normalizers.values.coerce import SchemaIndex
from normalizers.values.literals import json_number, json_string_body, python_escape
from normalizers.values.loose_json import Malformed

_MAX_LOOKAHEAD = 1024
_MAX_WORD = 1024
_PUNCTUATION = {
    "(": "LPAR",
    ")": "RPAR",
    "[": "LSQB",
    "]": "RSQB",
    "{": "LBRACE",
    "}": "RBRACE",
    ",": "COMMA",
    "=": "EQUAL",
    ":": "COLON",
    ";": "SEMICOLON",
}
_QUICK = {char: kind for char, kind in _PUNCTUATION.items() if kind not in ("EQUAL", "SEMICOLON")}
_QUICK |= {"'": "STRING", '"': "STRING"}
_CALLEE = re.compile(rf"\w[\w.\-:/]{{0,{_MAX_WORD - 1}}}")
_WORD = re.compile(rf"[\w.+\-]{{1,{_MAX_WORD}}}")
_KEY = re.compile(r"\w[\w.\-]*")
_CLOSING = {"'": "'", '"': '"', "“": "”", "”": "”", "„": "“", "‘": "’", "’": "’", "‚": "‘"}
"""By the quotes that open a string, those that close it."""
_QUOTED_KEY = re.compile(r"""(?:"([^\W\d][\w.\-]*)"|'([^\W\d][\w.\-]*)'|[“”‘’]([^\W\d][\w.\-]*)[”’])\s*[=:](?=[^=])""")
_QUOTED_KEY_START = re.compile(r"""["'“”‘’](?:[^\W\d][\w.\-]{0,127}(?:["'”’]\s{0,127}[=:]?)?)?\Z""")
_SIGNED = re.compile(r"([+-])\s+([\d.][\w.+\-]*)")
_SIGN_ALONE = re.compile(r"[+-]\s{0,127}\Z")
_FENCE = re.compile(r"```\w*")
_JSON_BODY = re.compile(rf"\[?\s{{0,{MAX_BLANKS}}}\{{")
_BODY_START = re.compile(rf"\[\s{{0,{MAX_BLANKS}}}\Z")
_PREFIXES = frozenset({"r", "u", "f", "b", "rb", "br", "fr", "rf"})
_QUOTES = frozenset(_CLOSING.values())
_SPECIAL = {quote: re.compile(rf"[{quote}\\]").search for quote in _QUOTES}
_NOT_PLAIN = {quote: re.compile(rf"[{quote}\"\\\x00-\x1f]").search for quote in _QUOTES}
_SPECIAL_F = {quote: re.compile(rf"[{quote}\\{{}}]").search for quote in "'\""}
_SKIP = re.compile(r"\\[\s\S]|[\"'()\[\]{}]")


@cache
def _tables() -> Tables:
    return Tables.read(Path(__file__).with_name("pythonic.tables.json").read_text("utf-8"))


@cache
def _quick(close_heads: frozenset[str]) -> dict[str, str]:
    """The signs that mean one token within a call: those that don't begin the region's end marker."""
    return {char: kind for char, kind in _QUICK.items() if char not in close_heads}


class Pythonic(Region):
    """One region of Python calls. `JsonCalls` reads a JSON body within the same markers."""

    __slots__ = (
        "_callee",
        "_closed",
        "_depth",
        "_dirty",
        "_formatted",
        "_last",
        "_listed",
        "_quick",
        "_quote",
        "_raw",
        "_search",
        "_stack",
    )

    def __init__(
        self, spec: FormatSpec, writer: CallWriter, schemas: SchemaIndex, *, bare: bool, opener: str = ""
    ) -> None:
        super().__init__(spec, writer, schemas, bare=bare, opener=opener)
        self._stack = _tables().begin()
        self._quick = _quick(self._close_heads)
        self._callee = ""
        self._quote = self._last = ""
        self._search = _SPECIAL['"']
        self._depth = -1
        self._listed = self._closed = False
        self._dirty = self._raw = self._formatted = False

    def _string_stop(self) -> Search | None:
        return _NOT_PLAIN[self._quote[0]] if self._quote and not (self._dirty or self._formatted) else None

    @classmethod
    def warm(cls) -> None:
        _tables()

    def _begin(self, text: str, pos: int, final: bool) -> int:
        """Skip layout, then decide between a JSON body and calls."""
        pos = skip_space(text, pos)
        if text.startswith("```", pos):
            fence = _FENCE.match(text, pos)
            assert fence
            if fence.end() == len(text) and not final:
                raise Wait
            return fence.end()
        if pos == len(text) and not final:
            self._wait = True
            return pos
        if not final and (text[pos:] in ("`", "``") or _BODY_START.match(text, pos)):
            raise Wait
        if _JSON_BODY.match(text, pos):
            self._hand_over(JsonCalls(self._spec, self._calls, self._schemas, bare=self._bare))
        else:
            self._state = type(self)._read_token
        return pos

    # -- tokens --------------------------------------------------------------------------------

    def _read_token(self, text: str, pos: int, final: bool) -> int:
        arguments = self._arguments
        size = len(text)
        if arguments.open:
            # The fast path over white space and delimiters, which make up most of a nested value.
            kinds = self._quick
            while pos < size:
                char = text[pos]
                if char != " ":
                    kind = kinds.get(char)
                    if kind is None:
                        break
                    try:
                        if kind == "STRING":
                            return self._open_string(text, pos, pos, final)
                        self._stack = self._stack.after.get(kind) or self._follow(kind)
                        arguments.delimiter(kind)
                    except Malformed as exc:
                        exc.pos = pos
                        raise
                    if not arguments.open:
                        self._end_call(text, pos + 1)
                        self.done = self._bare and not self._listed
                        return pos + 1
                pos += 1
        if pos < size and text[pos].isspace():
            pos = skip_space(text, pos)
        if pos == size:
            self._wait = True
            return pos
        try:
            return self._read_word(text, pos, final)
        except Wait:
            self._wait = True
            return pos
        except Malformed as exc:
            exc.pos = pos if exc.pos is None else exc.pos
            raise

    def _read_word(self, text: str, pos: int, final: bool) -> int:
        """Read the string, word or sign at `pos`, or the region's end marker."""
        char = text[pos]
        if char in self._close_heads and (end := self._marker(text, pos, final)) is not None:
            self._finish_callee(text, pos)
            return self._end_region(text, pos, end)
        if self._closed and char not in "[`":
            self.done = True
            return pos
        if char in _CLOSING and (self._arguments.open or char in "'\""):
            return self._open_string(text, pos, pos, final)
        kind = _PUNCTUATION.get(char)
        if kind:
            return self._shift(kind, char, text, pos, pos + 1)
        word = (_WORD if self._arguments.open else _CALLEE).match(text, pos)
        if word is None:
            return self._read_operator(text, pos, final)
        end = word.end()
        size = len(text)
        if end == size and not final and end - pos < _MAX_WORD:
            self._wait = True
            return pos
        name = word.group()
        if end < size and text[end] in "'\"" and name.lower() in _PREFIXES:
            return self._open_string(text, pos, end, final)
        if name in ("+", "-") and self._arguments.open and self._stack.feed("NUMBER") is not None:
            return self._read_signed(text, pos, final)
        if name == "+":
            return self._shift("PLUS", name, text, pos, end)
        number = self._arguments.open and (char in "+-." or (char.isdecimal() and json_number(name) is not None))
        return self._shift("NUMBER" if number else "NAME", name, text, pos, end)

    def _read_signed(self, text: str, pos: int, final: bool) -> int:
        """Read a number with white space behind its sign."""
        signed = _SIGNED.match(text, pos)
        if not final and (signed.end() == len(text) if signed else _SIGN_ALONE.match(text, pos)):
            raise Wait
        if signed is None:
            raise Malformed("syntax")
        self._calls.repaired("lexical")
        return self._shift("NUMBER", signed[1] + signed[2], text, pos, signed.end())

    def _read_operator(self, text: str, pos: int, final: bool) -> int:
        for operator in ("**", "```", "\\\n"):
            if not final and len(text) - pos < len(operator) and operator.startswith(text[pos:]):
                raise Wait
        if text.startswith("**", pos):
            return self._shift("DOUBLESTAR", "**", text, pos, pos + 2)
        if text.startswith("\\\n", pos) and self._arguments.open:
            return pos + 2
        if text.startswith("```", pos) and not (self._arguments.open or self._bare or self._listed or self._callee):
            return pos + 3
        raise Malformed("syntax")

    def _follow(self, kind: str) -> Stack:
        stack = self._stack.feed(kind)
        if stack is None:
            raise Malformed("syntax")
        return stack

    def _shift(self, kind: str, token: str, text: str, pos: int, end: int) -> int:
        arguments = self._arguments
        self._stack = self._stack.after.get(kind) or self._follow(kind)
        if arguments.open:
            arguments.token(kind, token)
            if not arguments.open:
                self._end_call(text, end)
                self.done = self._bare and not self._listed
        else:
            self._between_calls(kind, token, text, pos)
        return end

    def _between_calls(self, kind: str, token: str, text: str, pos: int) -> None:
        if kind == "LPAR":
            if self._bare and self._callee not in self._schemas:
                raise Malformed("unknown_tool")
            self._arguments.begin(self._callee)
            self._callee = ""
            return
        if self._callee:
            if kind == "NAME":
                raise Malformed("syntax")
            self._finish_callee(text, pos)
        if kind == "NAME":
            self._callee = token
        elif kind == "LSQB":
            self._listed, self._closed = True, False
        elif kind == "RSQB":
            self._closed = True
            self._listed = False
            self._stack = _tables().begin()
            self.done = self._bare
            self._pass_span(text, pos + 1)

    def _finish_callee(self, text: str, pos: int) -> None:
        """Complete ``server.tool`` alone, a call without arguments, if it can't be anything else."""
        name = self._callee
        if not name or self._arguments.open:
            return
        if self._bare or not (name in self._schemas or "." in name.strip(".")):
            raise Malformed("syntax")
        self._callee = ""
        self._arguments.begin(name)
        self._end_call(text, pos)

    # -- strings -------------------------------------------------------------------------------

    def _open_string(self, text: str, start: int, pos: int, final: bool) -> int:
        quote = text[pos]
        if not final and quote in "'\"" and text[pos:] in (quote, quote * 2):
            self._wait = True
            return start
        arguments = self._arguments
        if start == pos and arguments.open and arguments.before_argument:
            end = self._quoted_key(text, pos, final)
            if end:
                self._wait = end < 0
                return start if self._wait else end
        prefix = text[start:pos].lower()
        if "b" in prefix:
            raise Malformed("expression")
        if quote not in "'\"":
            quote = _CLOSING[quote]
            self._calls.repaired("lexical")
        elif text.startswith(quote * 3, pos):
            quote *= 3
        self._stack = self._stack.after.get("STRING") or self._follow("STRING")
        arguments.open_string()
        self._quote = quote
        self._raw = "r" in prefix
        self._formatted = "f" in prefix
        self._search = (_SPECIAL_F if self._formatted else _SPECIAL)[quote[0]]
        self._dirty = False
        self._last = ""
        self._state = type(self)._read_string
        return pos + len(quote)

    def _quoted_key(self, text: str, pos: int, final: bool) -> int:
        """Read a keyword in quotes, with its equals sign or colon; 0 if the string is a value, -1 to wait."""
        key = _QUOTED_KEY.match(text, pos)
        if key is None:
            return -1 if not final and _QUOTED_KEY_START.match(text, pos) else 0
        self._calls.repaired("lexical")
        self._shift("NAME", key[1] or key[2] or key[3], text, pos, key.end())
        return self._shift("EQUAL", "=", text, pos, key.end())

    def _read_string(self, text: str, pos: int, final: bool) -> int:
        quote = self._quote
        found = self._search(text, pos)
        at = found.start() if found else len(text)
        ended = False
        if self._dirty and self._close:
            limit, ended = self._end_within(text, pos, at, final)
            found = found if limit == at else None
            at = limit
        if at > pos:
            piece = text[pos:at]
            self._arguments.string(json_string_body(piece))
            if self._dirty:
                self._last = piece.rstrip()[-1:] or self._last
        if ended:
            failure = Malformed("unterminated_string")
            failure.pos = at
            raise failure
        if found is None or (at + 1 == len(text) and not final):
            self._wait = True
            return at
        try:
            if text[at] == quote and self._closes(text, at + 1, final):
                return self._end_string(at + 1)
            return self._special(text, at, final)
        except Wait:
            self._wait = True
            return at
        except Malformed as exc:
            exc.pos = at
            raise

    def _special(self, text: str, at: int, final: bool) -> int:
        """Read the backslash, brace or quote at `at`, which may not end the string."""
        char = text[at]
        quote = self._quote
        arguments = self._arguments
        if char == "\\":
            return self._read_escape(text, at, final)
        if char in "{}":
            if not text.startswith(char * 2, at):
                raise Malformed("f_string")
            arguments.string(char)
            return at + 2
        if char == quote:
            self._dirty = True
            self._calls.repaired("lexical")
        elif text.startswith(quote, at):
            return self._end_string(at + 3)
        elif not final and quote.startswith(text[at:]):
            raise Wait
        self._last = char
        arguments.string(json_string_body(char))
        return at + 1

    def _end_string(self, end: int) -> int:
        self._quote = ""
        self._state = type(self)._read_token
        return end

    def _read_escape(self, text: str, at: int, final: bool) -> int:
        self._last = "\\"
        if self._raw:
            self._arguments.string(json_string_body(text[at : at + 2]))
            return min(at + 2, len(text))
        decoded = python_escape(text, at, final)
        if decoded is None:
            raise Wait
        self._arguments.string(decoded[0])
        return decoded[1]

    def _end_within(self, text: str, pos: int, at: int, final: bool) -> tuple[int, bool]:
        """The position of the region's end marker in a string without a closing quote; `at` if there is none.

        Only after ``)`` or ``]``, and only after a stray quote: in any other string the marker is text.
        The flag is true for a whole marker, false for the beginning of one.
        """
        for literal in self._close:
            start = text.find(literal[0], pos, at)
            while start >= 0:
                before = text[pos:start].rstrip()[-1:] or self._last
                if before in (")", "]"):
                    if text.startswith(literal, start):
                        return start, True
                    if not final and literal.startswith(text[start:]):
                        return start, False
                start = text.find(literal[0], start + 1, at)
        return at, False

    def _closes(self, text: str, pos: int, final: bool) -> bool:
        """Whether the quote before `pos` ends the string, by the text after it. Raises `Wait`.

        Models write quotes within quotes without escaping them. A string ends as in Python until its
        first stray quote; after that, only a quote with a delimiter after it ends the string.
        """
        at, char = self._peek(text, pos, final)
        context = self._arguments.context
        regular = not self._dirty
        if not char:
            return True
        if char in "'\"":
            return regular
        if char == "+":
            return regular and self._peek(text, at + 1, final)[1] in ("'", '"')
        if char == ":":
            return context in "K?"
        if char in ")]}":
            if context == "A":
                return char == ")" and self._call_ends(text, at + 1, final)
            return context != "K" and self._peek(text, at + 1, final)[1] in ("", ",", ")", "]", "}", ":")
        if char != ",":
            return False
        if regular and context != "A":
            return True
        at, char = self._peek(text, at + 1, final)
        if not char:
            return True
        if context == "A":
            return self._argument_follows(text, at, final)
        if context in "[(":
            return char == self._quote
        return char == "}" or (char in "'\"" and self._key_follows(text, at, final))

    def _peek(self, text: str, pos: int, final: bool) -> tuple[int, str]:
        """The next character that isn't white space, and its position; empty if there is none. Raises `Wait`."""
        char = text[pos : pos + 1]
        if char and not char.isspace():
            return pos, char
        at = skip_space(text, pos)
        if at == len(text):
            if not final and at - pos < _MAX_LOOKAHEAD:
                raise Wait
            return at, ""
        return at, text[at]

    def _argument_follows(self, text: str, at: int, final: bool) -> bool:
        if text[at] in ")*":
            return True
        regular = not self._dirty
        word = _KEY.match(text, at)
        if word is None:
            return regular
        if word.end() == len(text) and not final and word.end() - at < _MAX_LOOKAHEAD:
            raise Wait
        if word.group().lower() in _PREFIXES and text[word.end() : word.end() + 1] in ("'", '"'):
            return regular
        after, char = self._peek(text, word.end(), final)
        if char == ":":
            return regular
        if char == "=":
            if after + 1 == len(text) and not final:
                raise Wait
            return text[after + 1 : after + 2] != "="
        return regular and self._arguments.positional

    def _key_follows(self, text: str, at: int, final: bool) -> bool:
        end = text.find(text[at], at + 1)
        if end < 0:
            if not final and len(text) - at < _MAX_LOOKAHEAD:
                raise Wait
            return False
        return self._peek(text, end + 1, final)[1] == ":"

    def _call_ends(self, text: str, pos: int, final: bool) -> bool:
        """Whether the ``)`` before `pos` can end a call. Raises `Wait`."""
        at, char = self._peek(text, pos, final)
        if not char:
            return True
        if self._bare and not self._listed:
            return char not in "'\")"
        if char == "]" and self._listed:
            return True
        if self._marker(text, at, final) is not None:
            return True
        if char in ",;":
            at, char = self._peek(text, at + 1, final)
            if char in ("", "]"):
                return True
        elif self._dirty:
            return False
        word = _CALLEE.match(text, at)
        if word is None:
            return False
        if word.end() == len(text) and not final and len(text) - at < _MAX_LOOKAHEAD:
            raise Wait
        return (text[word.end() : word.end() + 1] if self._dirty else self._peek(text, word.end(), final)[1]) == "("

    # -- failures ------------------------------------------------------------------------------

    def _unfinished(self) -> bool:
        return self._arguments.open or bool(self._callee)

    def _close_at_stop(self, text: str, pos: int) -> bool:
        if self._arguments.open:
            return False
        try:
            self._finish_callee(text, pos)
        except Malformed:
            return False
        return True

    def _prepare_skip(self) -> None:
        self._quote = self._quote[:1] if self._quote[:1] in ("'", '"') else ""
        self._depth = self._arguments.depth if self._arguments.open else -1
        self._callee = ""

    def _skip(self, text: str, pos: int, final: bool) -> int:
        """Skip to the call's own closing parenthesis, or to the end of the region."""
        size = len(text)
        while True:
            found = _SKIP.search(text, pos) if self._depth >= 0 else None
            at = found.start() if found else size
            marker, literal = self._marker_up_to(text, pos, at, final)
            if literal:
                self._refuse(text, marker)
                return self._end_region(text, marker, marker + len(literal))
            held = size if final else self._cut_marker(text, pos, at)
            if found is None or held < size:
                self._wait = True
                return held if final or held < size else size - text.endswith("\\", pos)
            piece, pos = found.group(), found.end()
            if self._quote:
                if piece == self._quote:
                    self._quote = ""
            elif piece in "'\"":
                self._quote = piece
            elif piece in "([{":
                self._depth += 1
            elif piece in ")]}":
                self._depth -= 1
                if self._depth <= 0:
                    self._refuse(text, pos)
                    self._resume()
                    return pos

    def _refuse(self, text: str, pos: int) -> None:
        self._quote = ""
        super()._refuse(text, pos)

    def _is_prose(self) -> bool:
        return not self._arguments.begun or super()._is_prose()

    def _layout(self, raw: str) -> str:
        return raw.strip("\t\n\r ,;")

    def _resume(self) -> None:
        """Bring the grammar to its state after a call."""
        self._stack = _tables().begin()
        for kind in ("LSQB", "NAME", "LPAR", "RPAR")[0 if self._listed else 1 :]:
            self._stack = self._follow(kind)
        self._state = type(self)._read_token

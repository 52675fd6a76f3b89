"""Calls written as Python: ``[get_weather(city="Paris"), ping()]``, whole or piece by piece.

An incremental lexer cuts the text into tokens wherever it was split, Lark's LALR tables say at once
whether a token can follow, and the `ArgumentWriter` turns each accepted token into JSON. Nothing is
ever evaluated; what is not a literal makes its call fail, and the call's source becomes content.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from lark import Lark, Token, UnexpectedToken
from lark.parsers.lalr_interactive_parser import InteractiveParser

from normalizers.base import CallWriter
from normalizers.coerce import SchemaIndex
from normalizers.dialects.arguments import ArgumentWriter, Malformed
from normalizers.dialects.json_calls import JsonCalls
from normalizers.dialects.literals import json_number, json_string_body, python_escape
from normalizers.spec import FormatSpec

_MAX_LOOKAHEAD = 1024
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
_TOKENS = {
    kind: Token(kind, "") for kind in (*_PUNCTUATION.values(), "NAME", "NUMBER", "STRING", "PLUS", "DOUBLESTAR", "$END")
}
_SPACE = re.compile(r"\s*")
_CALLEE = re.compile(r"\w[\w.\-:/]*")
_WORD = re.compile(r"[\w.+\-]+")
_KEY = re.compile(r"\w[\w.\-]*")
_FENCE = re.compile(r"```\w*")
_JSON_BODY = re.compile(r"\[?\s*\{")
_PREFIXES = frozenset({"r", "u", "f", "b", "rb", "br", "fr", "rf"})
_SPECIAL = {quote: re.compile(rf"[{quote}\\]").search for quote in "'\""}
_SPECIAL_F = {quote: re.compile(rf"[{quote}\\{{}}]").search for quote in "'\""}
_SKIP = re.compile(r"\\[\s\S]|[\"'()\[\]{}]")


@cache
def grammar() -> str:
    return files(__package__).joinpath("pythonic.lark").read_text("utf-8")


@cache
def _parser() -> Lark:
    return Lark(grammar(), parser="lalr", maybe_placeholders=False)


def _push_parser() -> InteractiveParser:
    parser = _parser().parse_interactive()
    # Reductions build nothing: the writer hangs on shifts.
    parser.parser_state.parse_conf.callbacks = {}
    return parser


class Pythonic:
    """One region of Python calls; a JSON body within the same markers goes to `JsonCalls`."""

    __slots__ = (
        "_arguments",
        "_bare",
        "_callee",
        "_calls",
        "_close",
        "_closed",
        "_depth",
        "_dirty",
        "_fail_code",
        "_formatted",
        "_inner",
        "_last",
        "_listed",
        "_mark",
        "_parser",
        "_quote",
        "_raw",
        "_schemas",
        "_skipping",
        "_span",
        "_spec",
        "_started",
        "_wait",
        "done",
    )

    def __init__(self, spec: FormatSpec, writer: CallWriter, schemas: SchemaIndex, *, bare: bool) -> None:
        self.done = False
        self._spec = spec
        self._calls = writer
        self._schemas = schemas
        self._bare = bare
        self._close = () if bare else spec.close
        self._arguments = ArgumentWriter(writer, schemas)
        self._parser: InteractiveParser = _push_parser()
        self._inner: JsonCalls | None = None
        self._span: list[str] = []
        self._mark = 0
        self._callee = ""
        self._quote = self._last = ""
        self._depth = -1
        self._fail_code = ""
        self._started = self._listed = self._closed = False
        self._skipping = self._wait = self._dirty = self._raw = self._formatted = False

    def step(self, text: str, pos: int, reason: str | None) -> int:
        if self._inner is None and not self._started:
            pos = self._begin(text, pos, reason)
            if not self._started and self._inner is None:
                return pos
        if self._inner is not None:
            pos = self._inner.step(text, pos, reason)
            self.done = self._inner.done
            return pos
        self._mark = pos
        self._wait = False
        while not self.done and not self._wait:
            if self._skipping:
                pos = self._skip_call(text, pos, reason)
            elif self._quote:
                pos = self._read_string(text, pos, reason)
            else:
                pos = self._read_token(text, pos, reason)
        if self._arguments.open:
            self._arguments.flush()
        self._span.append(text[self._mark : pos])
        return pos

    @classmethod
    def warm(cls) -> None:
        _parser()

    def _begin(self, text: str, pos: int, reason: str | None) -> int:
        """Skip layout, and tell a JSON body from calls."""
        while True:
            pos = _skip_space(text, pos)
            if text.startswith("```", pos):
                fence = _FENCE.match(text, pos)
                assert fence
                if fence.end() == len(text) and reason is None:
                    return pos
                pos = fence.end()
                continue
            rest = text[pos : pos + _MAX_LOOKAHEAD]
            if reason is None and (rest in ("", "`", "``") or (rest[0] == "[" and rest[1:].isspace()) or rest == "["):
                return pos
            if _JSON_BODY.match(text, pos):
                self._inner = JsonCalls(self._spec, self._calls, self._schemas, bare=self._bare)
            else:
                self._started = True
            return pos

    # -- tokens --------------------------------------------------------------------------------

    def _read_token(self, text: str, pos: int, reason: str | None) -> int:
        pos = _skip_space(text, pos)
        size = len(text)
        if pos == size:
            self._wait = True
            if reason is not None:
                self._finish(text, pos, reason)
            return pos
        char = text[pos]
        for literal in self._close:
            if char == literal[0]:
                if text.startswith(literal, pos):
                    return self._end_region(text, pos, pos + len(literal))
                if reason is None and literal.startswith(text[pos:]):
                    self._wait = True
                    return pos
        arguments = self._arguments
        if self._closed and char != "[" and char != "`":
            self.done = True
            return pos
        kind = _PUNCTUATION.get(char)
        if kind:
            return self._shift(kind, char, text, pos, pos + 1)
        if char == "'" or char == '"':
            return self._open_string(text, pos, pos, reason)
        word = (_WORD if arguments.open else _CALLEE).match(text, pos)
        if word:
            end = word.end()
            name = word.group()
            if end == size and reason is None and end - pos < _MAX_LOOKAHEAD * 8:
                self._wait = True
                return pos
            if end < size and text[end] in "'\"" and name.lower() in _PREFIXES:
                return self._open_string(text, pos, end, reason)
            if name == "+":
                return self._shift("PLUS", name, text, pos, end)
            number = arguments.open and (name[0] in "+-." or json_number(name) is not None)
            return self._shift("NUMBER" if number else "NAME", name, text, pos, end)
        if char == "*" or char == "`":
            token = "**" if char == "*" else "```"
            if reason is None and token.startswith(text[pos:]) and text[pos:] != token:
                self._wait = True
                return pos
            if char == "*" and text.startswith("**", pos):
                return self._shift("DOUBLESTAR", "**", text, pos, pos + 2)
            if not arguments.open and not self._bare and (fence := _FENCE.match(text, pos)):
                return fence.end()
        return self._fail("syntax", text, pos)

    def _shift(self, kind: str, token: str, text: str, pos: int, end: int) -> int:
        arguments = self._arguments
        try:
            self._parser.feed_token(_TOKENS[kind])
            if arguments.open:
                arguments.token(kind, token)
                if not arguments.open:
                    arguments.end(self._take_span(text, end))
                    self.done = self._bare and not self._listed
            else:
                self._between_calls(kind, token, text, pos)
        except UnexpectedToken:
            return self._fail("syntax", text, pos)
        except Malformed as exc:
            return self._fail(exc.code, text, pos)
        return end

    def _between_calls(self, kind: str, token: str, text: str, pos: int) -> None:
        if kind == "LPAR":
            if self._bare and self._callee not in self._schemas:
                raise Malformed("unknown_tool")
            self._arguments.begin(self._callee)
            self._callee = ""
            return
        if self._callee:
            self._call_without_parentheses(kind, text, pos)
        if kind == "NAME":
            self._callee = token
        elif kind == "LSQB":
            self._listed = True
        elif kind == "RSQB":
            self._closed = True
            self._parser = _push_parser()
            self._listed = False
            self.done = self._bare
            self._take_span(text, pos + 1)

    def _call_without_parentheses(self, kind: str, text: str, pos: int) -> None:
        """``server.tool`` alone is a call without arguments, if it can be nothing else."""
        name = self._callee
        if self._bare or kind == "NAME" or not (name in self._schemas or "." in name.strip(".")):
            raise Malformed("syntax")
        self._callee = ""
        self._arguments.begin(name)
        self._arguments.end(self._take_span(text, pos))

    def _take_span(self, text: str, end: int) -> str:
        """The source since the last call."""
        self._span.append(text[self._mark : end])
        raw = "".join(self._span)
        self._span.clear()
        self._mark = end
        return raw

    # -- strings -------------------------------------------------------------------------------

    def _open_string(self, text: str, start: int, pos: int, reason: str | None) -> int:
        prefix = text[start:pos].lower()
        quote = text[pos]
        run = text[pos : pos + 3]
        if reason is None and len(run) < 3 and run == quote * len(run):
            self._wait = True
            return start
        if "b" in prefix:
            return self._fail("expression", text, start)
        if run == quote * 3:
            quote = run
        end = self._shift("STRING", quote, text, start, pos + len(quote))
        if not self._skipping and not self.done:
            self._quote = quote
            self._raw = "r" in prefix
            self._formatted = "f" in prefix
            self._dirty = False
            self._last = ""
        return end

    def _read_string(self, text: str, pos: int, reason: str | None) -> int:
        quote = self._quote
        arguments = self._arguments
        search = (_SPECIAL_F if self._formatted else _SPECIAL)[quote[0]]
        size = len(text)
        found = search(text, pos)
        at = found.start() if found else size
        if self._dirty and self._close:
            limit = self._end_within(text, pos, at, reason)
            if limit < at:
                arguments.string(json_string_body(text[pos:limit]))
                self._last = text[pos:limit].rstrip()[-1:] or self._last
                return limit if self._wait else self._fail("unterminated_string", text, limit)
        if at > pos:
            arguments.string(json_string_body(text[pos:at]))
            self._last = text[pos:at].rstrip()[-1:] or self._last
        if found is None:
            if reason is not None:
                self._finish(text, size, reason)
            self._wait = True
            return size
        char = text[at]
        if char == "\\":
            return self._read_escape(text, at, reason)
        if char in "{}":
            if reason is None and at + 1 == size:
                self._wait = True
                return at
            if not text.startswith(char * 2, at):
                return self._fail("f_string", text, at)
            arguments.string(char)
            return at + 2
        if len(quote) == 3:
            if text.startswith(quote, at):
                self._quote = ""
                return at + 3
            if reason is None and quote.startswith(text[at:]):
                self._wait = True
                return at
            closes: bool | None = False
        else:
            closes = self._closes(text, at + 1, reason is not None)
        if closes is None:
            self._wait = True
            return at
        if closes:
            self._quote = ""
        else:
            if len(quote) == 1:
                self._dirty = True
                self._calls.mend("lexical")
            self._last = char
            arguments.string(json_string_body(char))
        return at + 1

    def _read_escape(self, text: str, at: int, reason: str | None) -> int:
        if self._raw:
            if reason is None and at + 1 == len(text):
                self._wait = True
                return at
            self._arguments.string(json_string_body(text[at : at + 2]))
            return min(at + 2, len(text))
        decoded = python_escape(text, at, reason is not None)
        if decoded is None:
            self._wait = True
            return at
        body, end = decoded
        self._last = "\\"
        self._arguments.string(body)
        return end

    def _end_within(self, text: str, pos: int, at: int, reason: str | None) -> int:
        """Where the region's end marker stands in a string that has lost its closing quote.

        Only behind ``)`` or ``]``, and only once a stray quote has been seen: in any other string
        the marker is text.
        """
        for literal in self._close:
            start = text.find(literal[0], pos, at)
            while start >= 0:
                before = text[pos:start].rstrip()[-1:] or self._last
                if before in (")", "]"):
                    if text.startswith(literal, start):
                        return start
                    if reason is None and literal.startswith(text[start:]):
                        self._wait = True
                        return start
                start = text.find(literal[0], start + 1, at)
        return at

    def _closes(self, text: str, pos: int, final: bool) -> bool | None:
        """Whether the quote before `pos` ends the string, by what follows; None: too early to tell.

        Models write quotes inside quotes without escaping them. Python's reading is taken as long
        as the string has been regular; after a stray quote only a full delimiter ends it.
        """
        at = _skip_space(text, pos)
        size = len(text)
        if at == size:
            return True if final else (None if at - pos < _MAX_LOOKAHEAD else not self._dirty)
        char = text[at]
        context = self._arguments.context
        regular = not self._dirty
        if char in "'\"":
            return regular
        if char == "+":
            at = _skip_space(text, at + 1)
            if at == size:
                return final or None
            return regular and text[at] in "'\""
        if char == ":":
            return context in "K?"
        if char in ")]}":
            if context == "A":
                return char == ")" and self._call_ends(text, at + 1, final)
            if context == "K":
                return False
            follower = _skip_space(text, at + 1)
            if follower == size:
                return final or None
            return text[follower] in ",)]}:"
        if char != ",":
            return False
        at = _skip_space(text, at + 1)
        if at == size:
            return final or None
        char = text[at]
        if context == "A":
            if char in ")*":
                return True
            word = _KEY.match(text, at)
            if word is None:
                return regular
            if word.group().lower() in _PREFIXES and text[word.end() : word.end() + 1] in ("'", '"'):
                return regular
            after = _skip_space(text, word.end())
            if after >= size - 1 and not final:
                return None if after - at < _MAX_LOOKAHEAD else False
            if text[after : after + 1] == "=" and text[after + 1 : after + 2] != "=":
                return True
            return regular and self._arguments.positional
        if context in "[(":
            return regular or char == self._quote
        if regular or char == "}":
            return True
        return char in "'\"" and self._key_ahead(text, at, final)

    def _key_ahead(self, text: str, at: int, final: bool) -> bool | None:
        end = text.find(text[at], at + 1)
        if end < 0:
            return False if final or len(text) - at > _MAX_LOOKAHEAD else None
        after = _skip_space(text, end + 1)
        if after == len(text):
            return False if final else None
        return text[after] == ":"

    def _call_ends(self, text: str, pos: int, final: bool) -> bool | None:
        """Whether the ``)`` before `pos` can be the end of a call."""
        at = _skip_space(text, pos)
        size = len(text)
        if at == size:
            return final or None
        char = text[at]
        if self._bare and not self._listed:
            return char not in "'\")"
        if char == "]" and self._listed:
            return True
        for literal in self._close:
            if text.startswith(literal, at):
                return True
            if not final and literal.startswith(text[at:]):
                return None
        if char in ",;":
            at = _skip_space(text, at + 1)
            if at == size:
                return final or None
            if text[at] == "]":
                return True
        elif self._dirty:
            return False
        word = _CALLEE.match(text, at)
        if word is None:
            return False
        if word.end() == size:
            return final or (None if size - at < _MAX_LOOKAHEAD else False)
        return text[word.end()] == "("

    # -- ends and failures ---------------------------------------------------------------------

    def _end_region(self, text: str, pos: int, end: int) -> int:
        if self._arguments.open:
            self._fail("unfinished_call", text, pos)
        elif self._callee:
            try:
                self._call_without_parentheses("$END", text, pos)
            except Malformed as exc:
                self._fail(exc.code, text, pos)
        if self._skipping:
            self._refuse(text, pos)
        self.done = True
        self._mark = end
        return end

    def _finish(self, text: str, pos: int, reason: str) -> None:
        """The answer ends inside the region."""
        self.done = True
        cut = reason == "length"
        if self._arguments.open or self._callee:
            if cut:
                self._arguments.abandon()
                self._calls.warn("truncated_call", self._take_span(text, pos))
            else:
                self._end_region(text, pos, pos)

    def _fail(self, code: str, text: str, pos: int) -> int:
        """The current call cannot be read: skip to its end."""
        self._fail_code = code
        self._skipping = True
        self._quote = self._quote[:1]
        self._depth = self._arguments.depth if self._arguments.open else -1
        self._arguments.abandon()
        self._callee = ""
        if self._bare:
            self._refuse(text, pos)
            self.done = True
        return pos

    def _skip_call(self, text: str, pos: int, reason: str | None) -> int:
        """Read up to the malformed call's own closing parenthesis, or to the end of the region."""
        size = len(text)
        while True:
            found = _SKIP.search(text, pos) if self._depth >= 0 else None
            at = found.start() if found else size
            for literal in self._close:
                if (marker := text.find(literal, pos, at + 1)) >= 0:
                    self._refuse(text, marker)
                    return self._end_region(text, marker, marker + len(literal))
            if found is None:
                end = size
                if reason is None:
                    end -= _partial_length(text, pos, self._close) or text.endswith("\\", pos)
                else:
                    self._refuse(text, size)
                    self.done = True
                self._wait = True
                return end
            piece = found.group()
            pos = found.end()
            if self._quote_skips(piece):
                continue
            if piece in "([{":
                self._depth += 1
            elif piece in ")]}":
                self._depth -= 1
                if self._depth <= 0:
                    self._refuse(text, pos)
                    self._resume()
                    return pos

    def _quote_skips(self, piece: str) -> bool:
        if self._quote:
            if piece == self._quote:
                self._quote = ""
            return True
        if piece[0] in "'\"":
            self._quote = piece
            return True
        return piece[0] == "\\"

    def _refuse(self, text: str, pos: int) -> None:
        """Give the call's source back as content."""
        raw = self._take_span(text, pos)
        if not self._bare:
            raw = raw.strip("\t\n\r ,;").removeprefix("[").lstrip()
        self._skipping = False
        self._quote = ""
        self._calls.text(raw)
        self._calls.warn(self._fail_code, raw)

    def _resume(self) -> None:
        """Stand where the grammar stands behind a call."""
        self._parser = _push_parser()
        for kind in ("LSQB", "NAME", "LPAR", "RPAR")[0 if self._listed else 1 :]:
            self._parser.feed_token(_TOKENS[kind])


def _skip_space(text: str, pos: int) -> int:
    match = _SPACE.match(text, pos)
    return match.end() if match else pos


def _partial_length(text: str, pos: int, literals: tuple[str, ...]) -> int:
    longest = max(map(len, literals), default=1)
    for at in range(max(pos, len(text) - longest + 1), len(text)):
        if any(literal.startswith(text[at:]) for literal in literals):
            return len(text) - at
    return 0

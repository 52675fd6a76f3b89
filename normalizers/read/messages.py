"""Answers in messages: reasoning, content and each call have a header.

``<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>`` is gpt-oss's call.
No header raises: its message becomes content, reasoning, a call or a warning.
"""

from __future__ import annotations

import re

from normalizers.base import CallWriter
from normalizers.read.json_calls import JsonCalls
from normalizers.read.region import NOT_A_CALL, Region, Search
from normalizers.read.scan import Wait
from normalizers.read.tags import TagCalls
from normalizers.spec import FormatSpec, MessageSyntax, call_format
from normalizers.values.coerce import SchemaIndex
from normalizers.values.loose_json import Malformed, ObjectReader

_RECIPIENT = re.compile(r"to=([^\s<]*\w)")
_MARK = re.compile(r"<[^<>\s]{0,40}(?:>|\Z)")
_WORD = re.compile(r"[^\W\d][\w.=:/\-]*")
_MAX_HEADER = 512
_MAX_WORDS = 5
_ROLES = ("assistant", "user", "system", "developer", "tool", "analysis", "commentary", "final", "self", "json", "code")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


class Messages(Region):
    __slots__ = ("_heads", "_kind", "_reader", "_syntax")

    def __init__(
        self, spec: FormatSpec, writer: CallWriter, schemas: SchemaIndex, *, bare: bool, opener: str = ""
    ) -> None:
        super().__init__(spec, writer, schemas, bare=bare, opener=opener)
        assert isinstance(spec.syntax, MessageSyntax)
        self._syntax = spec.syntax
        self._heads = spec.channels
        self._close = ()  # a message ends by its own literals
        self._stops = (*spec.syntax.ends, spec.channels[0])
        self._kind = ""
        self._reader: ObjectReader | None = None

    def _string_stop(self) -> Search | None:
        return self._reader.stop if self._reader else None

    def _begin(self, text: str, pos: int, final: bool) -> int:
        """Read a header, up to the literal that begins the body."""
        if self._at_call(text, pos, final):
            self._read_call()
            return pos
        syntax = self._syntax
        # What is longer is no header: no more of a long text is read for each mark in it.
        head = text[pos : pos + 2 * _MAX_HEADER]
        size, literal = self._skip_to_marker(head, 0, final, (*syntax.bodies, *syntax.ends))
        at, header = pos + size, head[:size]
        if not _may_be_header(header) or (final and not literal and not _is_cut_header(header)):
            if self._first:
                raise Malformed(NOT_A_CALL)
            self.done = True  # the text's reader looks at the mark again
            return pos
        if not literal:
            self._wait = True
            return at if final else pos
        end = at + len(literal)
        if literal not in syntax.bodies:
            self._calls.warn("empty_message", self._take_span(text, end))
            self._state = type(self)._between
            return end
        self._open_message(header, literal)
        return end

    def _at_call(self, text: str, pos: int, final: bool) -> bool:
        """Whether a call begins here without a header. Raises `Wait`."""
        for literal in call_format(self._spec).open:
            if text.startswith(literal, pos):
                return True
            if not final and literal.startswith(text[pos:]):
                raise Wait
        return False

    def _open_message(self, header: str, body: str) -> None:
        recipients = _RECIPIENT.findall(header)
        channels = _CHANNEL.findall(header)
        name = recipients[-1] if recipients else ""
        words = {name} if name not in ("", "assistant") else {body, *channels[-1:]}
        syntax = self._syntax
        self._state = type(self)._read_message
        self.quoted = False
        if not words.isdisjoint(syntax.reasoning):
            self._kind = "reasoning"
        elif not words.isdisjoint(syntax.content):
            self._kind = "content"
        elif not name.startswith(syntax.tools) and name not in self._schemas:
            self._kind = "foreign"
        elif syntax.calls != "arguments":
            self._read_call()
        else:
            self._arguments.begin(name.removeprefix(syntax.tools))
            self._reader = ObjectReader(self._arguments)
            self._state = type(self)._read_arguments

    def _read_call(self) -> None:
        """Let the dialect of the message's body read it."""
        inner = call_format(self._spec)
        dialect = TagCalls if inner.dialect == "tags" else JsonCalls
        self._hand_over(dialect(inner, self._calls, self._schemas, bare=self._bare))

    def _between(self, text: str, pos: int, final: bool) -> int:
        at = self._blank_end(text, pos)
        tail = text[at : at + max(map(len, self._heads))]
        if not tail:
            self._wait = True
        elif tail.startswith(self._heads):
            self._take_span(text, at)
            self._state = type(self)._begin
            return at
        elif final or not any(head.startswith(tail) for head in self._heads):
            self.done = True
        else:
            self._wait = True
        return pos

    def _overflow(self) -> bool:
        if self._state is type(self)._read_message and self._kind != "foreign":
            self._take_span("", 0)  # it is content or reasoning already
            return True
        return super()._overflow()

    def _read_message(self, text: str, pos: int, final: bool) -> int:
        at, literal = self._skip_to_marker(text, pos, final, self._stops)
        if self._kind == "reasoning":
            self._calls.reasoning(text[pos:at])
        elif self._kind == "content":
            self._calls.text(text[pos:at])
        if not literal:
            self._wait = True
            return at
        return self._end_message(text, at, literal)

    def _end_message(self, text: str, at: int, literal: str) -> int:
        end = at + len(literal) if literal in self._syntax.ends else at
        if self.quoted:
            self._pass_span(text, end)
        raw = self._take_span(text, end)
        if self._kind == "foreign":
            self._calls.warn("unknown_recipient", raw)
        self._state = type(self)._between
        return end

    def _read_arguments(self, text: str, pos: int, final: bool) -> int:
        reader = self._reader
        assert reader is not None
        if reader.done:
            at, literal = self._skip_to_marker(text, pos, final, self._stops)
            if literal:
                self._kind = ""
                return self._end_message(text, at, literal)
            self._wait = True
            return at
        pos = reader.step(text, pos, final)
        if reader.done:
            self._end_call(text, pos)
        else:
            self._wait = True
        return pos

    def _finish(self, text: str, pos: int, reason: str) -> None:
        if self._kind == "foreign" and self._state is type(self)._read_message:
            self._calls.warn("unknown_recipient", self._take_span(text, pos))
        elif self._kind and self._state is type(self)._read_message:
            self._drop_lead()  # the body is content or reasoning already
        super()._finish(text, pos, reason)

    def _skip(self, text: str, pos: int, final: bool) -> int:
        at, literal = self._skip_to_marker(text, pos, final, self._stops)
        if not literal:
            self._wait = True
            return at
        self._refuse(text, at)
        self._kind = ""
        return self._end_message(text, at, literal)


def _may_be_header(text: str) -> bool:
    """Whether the text is a header, or the beginning of one; False for prose that holds a header's mark."""
    if len(text) > _MAX_HEADER or "\n" in text.strip():
        return False
    words = _MARK.sub(" ", text).split()
    return len(words) <= _MAX_WORDS and all(map(_WORD.fullmatch, words))


def _is_cut_header(text: str) -> bool:
    """Whether the text is the beginning of a header that the answer's end cuts off."""
    words = _MARK.sub(" ", text).split()
    return all(word.startswith("to=") or any(role.startswith(word) for role in _ROLES) for word in words)

"""Harmony, the channels of gpt-oss: reasoning, content and each call are messages with a header.

``<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>``.
No header raises: its message becomes content, reasoning, a call or a warning.
"""

from __future__ import annotations

import re

from normalizers.base import CallWriter
from normalizers.read.region import NOT_A_CALL, Region, Search
from normalizers.spec import FormatSpec
from normalizers.values.coerce import SchemaIndex
from normalizers.values.loose_json import Malformed, ObjectReader

_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_HEADS = ("<|start|>", "<|channel|>")
_STOPS = (*_ENDS, "<|start|>")
_MESSAGE = "<|message|>"
_MAX_HEADER = 512
_HEADER = re.compile(
    r"(?:<\|start\|>(?:(?:assistant|user|system|developer|tool|functions)\b[^\n<]*)?)?"
    r"(?:<\|channel\|>\s*(?:(?:analysis|commentary|final)\b[\s\S]*)?|to=functions\.[\w.\-]*\s*(?:<[\s\S]*|json|code)?\s*)?"
)
_WORDS = (
    "assistant",
    "user",
    "system",
    "developer",
    "tool",
    "functions",
    "analysis",
    "commentary",
    "final",
    "json",
    "code",
)
_LAST_WORD = re.compile(r"([a-z]*|<\|?[a-z]*\|?)\Z")
_RECIPIENT = re.compile(r"to=([^\s<]*\w)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


class Harmony(Region):
    __slots__ = ("_kind", "_reader")

    def __init__(
        self, spec: FormatSpec, writer: CallWriter, schemas: SchemaIndex, *, bare: bool, opener: str = ""
    ) -> None:
        super().__init__(spec, writer, schemas, bare=bare, opener=opener)
        self._kind = ""
        self._reader: ObjectReader | None = None

    def _string_stop(self) -> Search | None:
        return self._reader.stop if self._reader else None

    def _begin(self, text: str, pos: int, final: bool) -> int:
        """Read a header, up to ``<|message|>``."""
        at, literal = self._skip_to_marker(text, pos, final, (_MESSAGE, *_ENDS))
        header = text[pos:at]
        if at - pos > _MAX_HEADER or not _may_be_header(header):
            if self._first:
                raise Malformed(NOT_A_CALL)
            self.done = True  # the text's reader looks at the mark again
            return pos
        if not literal:
            self._wait = True
            return at if final else pos
        end = at + len(literal)
        if literal != _MESSAGE:
            self._calls.warn("empty_message", self._take_span(text, end))
            self._state = self._between
            return end
        self._open_message(header)
        return end

    def _open_message(self, header: str) -> None:
        recipients = _RECIPIENT.findall(header)
        channels = _CHANNEL.findall(header)
        name = recipients[-1] if recipients else "assistant"
        self._state = self._read_message
        self.quoted = False
        if name.startswith("functions.") or name in self._schemas:
            self._arguments.begin(name.removeprefix("functions."))
            self._reader = ObjectReader(self._arguments)
            self._state = self._read_arguments
        elif name != "assistant":
            self._kind = "foreign"
        else:
            self._kind = "reasoning" if channels and channels[-1] == "analysis" else "content"

    def _between(self, text: str, pos: int, final: bool) -> int:
        at = self._blank_end(text, pos)
        tail = text[at : at + len(_HEADS[1])]
        if not tail:
            self._wait = True
        elif tail.startswith(_HEADS):
            self._take_span(text, at)
            self._state = self._begin
            return at
        elif final or not any(head.startswith(tail) for head in _HEADS):
            self.done = True
        else:
            self._wait = True
        return pos

    def _overflow(self) -> bool:
        if self._state == self._read_message and self._kind != "foreign":
            self._take_span("", 0)  # it is content or reasoning already
            return True
        return super()._overflow()

    def _read_message(self, text: str, pos: int, final: bool) -> int:
        at, literal = self._skip_to_marker(text, pos, final, _STOPS)
        if self._kind == "reasoning":
            self._calls.reasoning(text[pos:at])
        elif self._kind == "content":
            self._calls.text(text[pos:at])
        if not literal:
            self._wait = True
            return at
        return self._end_message(text, at, literal)

    def _end_message(self, text: str, at: int, literal: str) -> int:
        end = at + len(literal) if literal in _ENDS else at
        if self.quoted:
            self._pass_span(text, end)
        raw = self._take_span(text, end)
        if self._kind == "foreign":
            self._calls.warn("unknown_recipient", raw)
        self._state = self._between
        return end

    def _read_arguments(self, text: str, pos: int, final: bool) -> int:
        reader = self._reader
        assert reader is not None
        if reader.done:
            at, literal = self._skip_to_marker(text, pos, final, _STOPS)
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
        if self._kind == "foreign" and self._state == self._read_message:
            self._calls.warn("unknown_recipient", self._take_span(text, pos))
        super()._finish(text, pos, reason)

    def _skip(self, text: str, pos: int, final: bool) -> int:
        at, literal = self._skip_to_marker(text, pos, final, _STOPS)
        if not literal:
            self._wait = True
            return at
        self._refuse(text, at)
        self._kind = ""
        return self._end_message(text, at, literal)


def _may_be_header(text: str) -> bool:
    """Whether the text is a header, or the beginning of one; False for prose that holds a header's mark."""
    if _HEADER.fullmatch(text):
        return True
    word = _LAST_WORD.search(text)
    unfinished = word is not None and any(known.startswith(word[1]) for known in (*_WORDS, *_HEADS, _MESSAGE))
    return word is not None and unfinished and _HEADER.fullmatch(text[: word.start()]) is not None

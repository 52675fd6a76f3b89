"""The base of all dialects: it keeps the source of each call, handles failures and ends the region."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

from normalizers.base import CallWriter
from normalizers.events import Event, ToolArgs
from normalizers.read.arguments import ArgumentWriter
from normalizers.read.scan import Wait, is_token, partial_suffix, skip_space
from normalizers.spec import FormatSpec
from normalizers.values.coerce import SchemaIndex
from normalizers.values.loose_json import Malformed

Search = Callable[..., "re.Match[str] | None"]
NOT_A_CALL = "not_a_call"
_PROSE = frozenset({NOT_A_CALL, "syntax", "arguments_not_an_object"})
"""How a call fails that is none: prose about the mark before it, say."""

MAX_HELD = 1 << 20
"""Characters of a call that are held back. A longer call becomes content, and so does the rest of it."""


class Region:
    """A state machine. A state reads ``text[pos:]`` and returns the position that it reached.

    A state sets `_wait` or raises `Wait` when it needs more text, and raises `Malformed` when it can't
    read the call. The call's source then becomes content, and reading goes on after it.

    A call of a tool that the request doesn't declare becomes content as it is, with the region's markup around it.

    opener: what stands before the region and becomes content with such a call.
    """

    __slots__ = (
        "_arguments",
        "_bare",
        "_blanks",
        "_call_end",
        "_calls",
        "_close",
        "_close_heads",
        "_code",
        "_first",
        "_index",
        "_lead",
        "_longest",
        "_mark",
        "_schemas",
        "_seen",
        "_skipped",
        "_span",
        "_spec",
        "_state",
        "_stops",
        "_taken",
        "_undeclared",
        "_wait",
        "announced",
        "closed",
        "done",
        "in_sentence",
        "quoted",
        "room",
        "stop",
        "successor",
    )

    def __init__(
        self, spec: FormatSpec, writer: CallWriter, schemas: SchemaIndex, *, bare: bool, opener: str = ""
    ) -> None:
        self._lead = opener
        self.announced = False
        """The region's opener was dropped, though no call followed. So is its end marker."""
        self.in_sentence = False
        """The opener stands behind other text in its line, or is a word, so it may be part of a sentence."""
        self._first = True
        self._blanks = 0
        self._undeclared = False
        self.quoted = False
        """What the region last read is content as it is, so white space after it is content, too."""
        self.room = MAX_HELD
        """How many more characters of the present call may come."""
        self.done = self.closed = False
        """`closed`: by its end marker."""
        self.successor: Region | None = None
        self._spec = spec
        self._calls = writer
        self._schemas = schemas
        self._bare = bare
        self._close = () if bare else spec.close
        self._close_heads, self._longest = _heads(self._close)
        self._arguments = ArgumentWriter(writer, schemas)
        self._span: list[str] = []
        self._taken: list[str] | None = [] if spec.echo and not bare else None
        self._mark = 0
        self._index = -1
        self.stop: Search | None = None
        self._code = ""
        self._skipped = False
        self._seen = False
        """A call has been read."""
        self._call_end: tuple[str, ...] = ()
        self._stops: tuple[str, ...] = ()
        """What a malformed call ends before, or with if it is in `_call_end`."""
        self._wait = False
        self._state: Callable[[Any, str, int, bool], int] = type(self)._begin
        """A method of the class: one of this object would keep it alive until Python's collector comes by."""

    def held(self) -> tuple[str, int] | None:
        if not self._arguments.begun:
            return None
        return self._arguments.name, MAX_HELD - self.room

    @property
    def source(self) -> str:
        return "".join(self._taken or ())

    def more(self, text: str) -> list[Event] | None:
        if self._index >= 0:
            self._span.append(text)
            return [ToolArgs(self._index, text)]
        self.room -= len(text)
        if self.room < 1:
            self.room += len(text)
            return None
        self._span.append(text)
        self._arguments.string(text)
        return []

    def step(self, text: str, pos: int, reason: str | None) -> int:
        while len(text) - pos > self.room and not self._calls.guarded:
            # Stops at the same character in every split, so that all give the same events.
            limit = pos + self.room
            pos = self._step(text[:limit], pos, None)
            if self.done or self.successor is not None:
                return pos
            if pos + self.room == limit and not self._overflow():
                break
        return self._step(text, pos, reason)

    def _overflow(self) -> bool:
        """Turn what fills the room into content; False if nothing does."""
        self._mark = 0
        if self._unfinished():
            self._fail("call_too_long", "", 0)
        raw = self._take_span("", 0)
        if raw:
            self._keep(raw)
        return bool(raw) or self.done

    def _step(self, text: str, pos: int, reason: str | None) -> int:
        self._mark = start = pos
        self._wait = False
        final = reason is not None
        size = len(text)
        while True:
            try:
                pos = self._state(self, text, pos, final)
            except Wait:
                break
            except Malformed as exc:
                pos = skip_space(text, pos if exc.pos is None else exc.pos)
                pos = self._fail(exc.code, text, pos)
            if self._wait or self.done or (pos == size and not final):
                break
        if self.successor is not None:
            self._pass_span(text, pos)
            self.successor._taken = self._taken
            self.successor._lead = self._lead
            return pos
        if reason is not None and not self.done:
            pos = len(text)
            self._finish(text, pos, reason)
        elif pos == start and not self.done:
            return pos
        self.stop = None
        arguments = self._arguments
        if arguments.begun:
            arguments.flush()
            if arguments.in_string:
                self._index = arguments.streaming
                self.stop = self._string_stop()
        self._span.append(text[self._mark : pos])
        self.room -= pos - self._mark
        self._mark = pos
        if self.done and self.quoted:
            self._pass_span(text, pos)
        return pos

    def _hand_over(self, successor: Region) -> None:
        """Let another dialect read the rest of the region."""
        self.successor = successor
        self._wait = True

    # -- for dialects to override --------------------------------------------------------------

    def _begin(self, text: str, pos: int, final: bool) -> int:
        raise NotImplementedError

    def _skip(self, text: str, pos: int, final: bool) -> int:
        """Read to the end of a malformed call, then `_refuse`."""
        at, literal = self._skip_call(text, pos, final, self._stops)
        if not literal:
            self._wait = True
            return at
        if literal in self._call_end:
            at += len(literal)
        self._refuse(text, at)
        self._seen = True
        self._state = type(self)._begin
        return at

    def _complete(self, text: str, end: int) -> None:
        """End the present call, and go on to the next."""
        self._end_call(text, end)
        self._seen = True
        self._state = type(self)._begin

    def _string_stop(self) -> Search | None:
        """In a string, the search for any character that JSON spells differently."""
        return None

    def _unfinished(self) -> bool:
        """Whether a call has begun and not ended."""
        return self._arguments.begun

    def _close_at_stop(self, text: str, pos: int) -> bool:
        """If the model stopped and only markup is missing, complete the open call; False otherwise."""
        return False

    def _prepare_skip(self) -> None:
        pass

    # -- shared --------------------------------------------------------------------------------

    def _marker(self, text: str, pos: int, final: bool) -> int | None:
        """The end of the region's end marker at `pos`; None if there is none. Raises `Wait`."""
        if text[pos] not in self._close_heads:
            return None
        for literal in self._close:
            if text.startswith(literal, pos):
                return pos + len(literal)
        if self._close and len(text) - pos < self._longest:
            tail = text[pos:]
            if any(literal.startswith(tail) for literal in self._close):
                if not final:
                    raise Wait
                # The answer was cut within the mark.
                return None if self._first and not self._arguments.begun else len(text)
        return None

    def _opener(self, text: str, pos: int, final: bool) -> int:
        """The end of an opener that the model repeats at `pos`; 0 if there is none. Raises `Wait`."""
        for literal in () if self._bare else self._spec.open:
            if text.startswith(literal, pos):
                return pos + len(literal)
            if not final and literal.startswith(text[pos:]):
                raise Wait
        return 0

    def _take_span(self, text: str, end: int) -> str:
        """The source since the last call, up to `end`."""
        self._span.append(text[self._mark : end])
        raw = "".join(self._span)
        self._span.clear()
        self.room = MAX_HELD
        self._mark = end
        if self._taken is not None:
            self._taken.append(raw)
        return raw

    def _blank_end(self, text: str, pos: int) -> int:
        """The end of the white space at `pos`. If that is the text's end, the caller must return `pos`.

        White space that the last call saw isn't read again.
        """
        end = skip_space(text, pos + self._blanks)
        self._blanks = end - pos if end == len(text) else 0
        return end

    def _pass_span(self, text: str, end: int) -> None:
        """Take the region's own markup up to `end`. It is content if the call that it belongs to is."""
        raw = self._take_span(text, end)
        if self.quoted:
            self._calls.text(raw)
        elif self._first:
            self._lead += raw

    def _keep(self, raw: str) -> None:
        """Turn source into content as it is."""
        self._calls.text(self._lead + raw)
        self._lead = ""
        self._first = False
        self.quoted = True

    def _drop_lead(self) -> None:
        self._lead = ""
        self._first = self.quoted = False

    def _end_call(self, text: str, end: int) -> None:
        raw = self._take_span(text, end)
        if self._arguments.undeclared:
            self._keep(raw)
        else:
            self._drop_lead()
        self._arguments.end(raw)

    def _end_region(self, text: str, pos: int, end: int) -> int:
        """End the region; its end marker spans `pos` to `end`."""
        if self._unfinished():
            self._fail("unfinished_call", text, pos)
            self._refuse(text, pos)
        self.done = self.closed = True
        self._pass_span(text, end)
        return end

    def _finish(self, text: str, pos: int, reason: str) -> None:
        if self._state is type(self)._skip:
            self._refuse(text, pos)
        elif self._unfinished():
            if reason == "length":
                self._cut(text, pos)
            elif not self._close_at_stop(text, pos):
                self._fail("unfinished_call", text, pos)
                if not self._bare:
                    self._refuse(text, pos)
        elif self._first and self.in_sentence:
            self._keep(self._take_span(text, pos))
        self.done = True

    def _cut(self, text: str, pos: int) -> None:
        self._undeclared = self._is_undeclared()
        raw = self._take_span(text, pos)
        if self._undeclared:
            self._arguments.abandon()
            self._keep(raw)
        else:
            self._drop_lead()
            self._arguments.cut()
        self._calls.warn("truncated_call", raw)

    def _is_undeclared(self) -> bool:
        """Whether the present call names a tool that the request doesn't declare."""
        return self._arguments.begun and self._arguments.undeclared

    def _fail(self, code: str, text: str, pos: int) -> int:
        self._code = code
        self._skipped = False
        self._undeclared = self._is_undeclared()
        prose = self._first and code in _PROSE and self._is_prose()
        if prose and not self.in_sentence and self._announces(self._lead.strip()):
            self._lead = ""  # the model announced a call, and then wrote none
            self.announced = True
        self._prepare_skip()
        self._arguments.abandon()
        self._state = type(self)._skip
        if self._bare or prose:
            if pos == self._mark and not any(self._span):
                # This looked like the beginning of a call but is text. Don't look at it again.
                pos += 1
            self._refuse(text, pos)
            self.done = True
        return pos

    def _announces(self, lead: str) -> bool:
        """Whether what stands before the region is a mark, and nothing else, that prose hardly holds."""
        return lead in (*self._spec.open, *self._spec.begins) and is_token(lead)

    def _is_prose(self) -> bool:
        """Whether what follows the opener shows that it begins no call: no name, or another word than a tool's."""
        arguments = self._arguments
        if arguments.begun:
            return arguments.name not in self._schemas and not arguments.count and arguments.depth == 1
        return self._state is type(self)._begin

    def _refuse(self, text: str, pos: int) -> None:
        """Turn the call's source into content."""
        raw = self._take_span(text, pos)
        self._keep(raw if self._first else self._layout(raw))
        if self._code != NOT_A_CALL:
            self._calls.warn(self._code, raw)

    def _layout(self, raw: str) -> str:
        """The source of a refused call beside others, without what separates it from them."""
        return raw.strip()

    def _skip_call(self, text: str, pos: int, final: bool, stops: tuple[str, ...]) -> tuple[int, str]:
        """Skip to the first stop or end marker after the call's own beginning."""
        if not self._skipped:
            self._skipped = True
            pos = min(pos + 1, len(text))
        return self._skip_to_marker(text, pos, final, stops)

    def _marker_up_to(self, text: str, pos: int, last: int, final: bool) -> tuple[int, str]:
        """The first end marker that begins at `last` at the latest: its position, and which one it is; '' for none, and
        for one that more text could make a longer one."""
        found, literal = last, ""
        for stop in self._close:
            at = text.find(stop, pos, found + len(stop))
            if at >= 0 and (at < found or not literal):
                found, literal = at, stop
        return found, "" if not final and self._may_grow(text, found) else literal

    def _may_grow(self, text: str, at: int) -> bool:
        """Whether an end marker begins there that the text's end cuts off."""
        size = len(text) - at
        return size < self._longest and any(len(stop) > size and stop.startswith(text[at:]) for stop in self._close)

    def _cut_marker(self, text: str, pos: int, last: int) -> int:
        """Where an end marker may begin that the text's end cuts off, at `last` at the latest; else the text's end."""
        size = len(text)
        at = size - partial_suffix(text, pos, self._close, self._longest) if size - last < self._longest else size
        return at if at <= last else size

    def _skip_to_marker(self, text: str, pos: int, final: bool, stops: tuple[str, ...] = ()) -> tuple[int, str]:
        """The position of the first stop or end marker, and which one it is; '' if there is none yet."""
        stops = (*stops, *self._close)
        # All in one search: one for each would read the rest of a long text for those that it lacks, mark by mark.
        match = _search(stops)(text, pos)
        if match is not None:
            found = match.start()
            return found, "" if not final and self._may_grow(text, found) else match.group()
        longest = max(map(len, stops), default=1)
        return len(text) - (0 if final else partial_suffix(text, pos, stops, longest)), ""


@lru_cache(maxsize=256)
def _search(literals: tuple[str, ...]) -> Search:
    """The search for the first of them; of several that stand at one place, for the first in this order."""
    return re.compile("|".join(map(re.escape, literals)) or r"(?!)").search


@cache
def _heads(literals: tuple[str, ...]) -> tuple[frozenset[str], int]:
    """Their first characters, and the length of the longest."""
    return frozenset(literal[0] for literal in literals), max(map(len, literals), default=1)

"""The base of all dialects: it keeps the source of each call, handles failures and ends the region."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import ClassVar

from normalizers.base import CallWriter
from normalizers.events import Event, ToolArgs
from normalizers.read.arguments import ArgumentWriter
from normalizers.read.scan import Wait, partial_suffix, skip_space
from normalizers.spec import FormatSpec
from normalizers.values.coerce import SchemaIndex
from normalizers.values.loose_json import Malformed

Search = Callable[..., "re.Match[str] | None"]
NOT_A_CALL = "not_a_call"


class Region:
    """A state machine. A state reads ``text[pos:]`` and returns the position that it reached.

    A state sets `_wait` or raises `Wait` when it needs more text, and raises `Malformed` when it can't
    read the call. The call's source then becomes content, and reading goes on after it.
    """

    _held_as_it_is: ClassVar[bool] = False
    """Whether a string that is held back goes out later exactly as it came in."""

    __slots__ = (
        "_arguments",
        "_bare",
        "_calls",
        "_close",
        "_close_heads",
        "_code",
        "_index",
        "_longest",
        "_mark",
        "_schemas",
        "_skipped",
        "_span",
        "_spec",
        "_state",
        "_taken",
        "_wait",
        "done",
        "stop",
        "successor",
    )

    def __init__(self, spec: FormatSpec, writer: CallWriter, schemas: SchemaIndex, *, bare: bool) -> None:
        self.done = False
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
        self._wait = False
        self._state: Callable[[str, int, bool], int] = self._begin

    @property
    def source(self) -> str:
        return "".join(self._taken or ())

    def more(self, text: str) -> Event | None:
        self._span.append(text)
        if self._index < 0:
            self._arguments.string(text)
            return None
        return ToolArgs(self._index, text)

    def step(self, text: str, pos: int, reason: str | None) -> int:
        self._mark = start = pos
        self._wait = False
        final = reason is not None
        size = len(text)
        while True:
            try:
                pos = self._state(text, pos, final)
            except Wait:
                break
            except Malformed as exc:
                pos = skip_space(text, pos if exc.pos is None else exc.pos)
                pos = self._fail(exc.code, text, pos)
            if self._wait or self.done or (pos == size and not final):
                break
        if self.successor is not None:
            self._take_span(text, pos)
            self.successor._taken = self._taken
            return pos
        if reason is not None and not self.done:
            pos = len(text)
            self._finish(text, pos, reason)
        elif pos == start:
            return pos
        self.stop = None
        arguments = self._arguments
        if arguments.begun:
            arguments.flush()
            if arguments.in_string:
                self._index = arguments.streaming
                if self._index >= 0 or self._held_as_it_is:
                    self.stop = self._string_stop()
        self._span.append(text[self._mark : pos])
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
        raise NotImplementedError

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
        if not final and self._close and len(text) - pos < self._longest:
            tail = text[pos:]
            if any(literal.startswith(tail) for literal in self._close):
                raise Wait
        return None

    def _take_span(self, text: str, end: int) -> str:
        """The source since the last call, up to `end`."""
        self._span.append(text[self._mark : end])
        raw = "".join(self._span)
        self._span.clear()
        self._mark = end
        if self._taken is not None:
            self._taken.append(raw)
        return raw

    def _end_call(self, text: str, end: int) -> None:
        self._arguments.end(self._take_span(text, end))

    def _end_region(self, text: str, pos: int, end: int) -> int:
        """End the region; its end marker spans `pos` to `end`."""
        if self._unfinished():
            self._fail("unfinished_call", text, pos)
            self._refuse(text, pos)
        self.done = True
        self._take_span(text, end)
        return end

    def _finish(self, text: str, pos: int, reason: str) -> None:
        if self._state == self._skip:
            self._refuse(text, pos)
        elif self._unfinished():
            if reason == "length":
                self._arguments.abandon()
                self._calls.warn("truncated_call", self._take_span(text, pos))
            elif not self._close_at_stop(text, pos):
                self._fail("unfinished_call", text, pos)
                if not self._bare:
                    self._refuse(text, pos)
        self.done = True

    def _fail(self, code: str, text: str, pos: int) -> int:
        self._code = code
        self._skipped = False
        self._prepare_skip()
        self._arguments.abandon()
        self._state = self._skip
        if self._bare:
            if pos == self._mark and not any(self._span):
                # This looked like the beginning of a call but is text. Don't look at it again.
                pos += 1
            self._refuse(text, pos)
            self.done = True
        return pos

    def _refuse(self, text: str, pos: int) -> None:
        """Turn the call's source into content."""
        raw = self._take_span(text, pos)
        if not self._bare:
            raw = self._layout(raw)
        self._calls.text(raw)
        if self._code != NOT_A_CALL:
            self._calls.warn(self._code, raw)

    def _layout(self, raw: str) -> str:
        """The refused source without the format's special tokens."""
        return self._spec.unmarked(raw)

    def _skip_call(self, text: str, pos: int, final: bool, stops: tuple[str, ...]) -> tuple[int, str]:
        """Skip to the first stop or end marker after the call's own beginning."""
        if not self._skipped:
            self._skipped = True
            pos = min(pos + 1, len(text))
        return self._skip_to_marker(text, pos, final, stops)

    def _skip_to_marker(self, text: str, pos: int, final: bool, stops: tuple[str, ...] = ()) -> tuple[int, str]:
        """The position of the first stop or end marker, and which one it is; '' if there is none yet."""
        found, literal = len(text), ""
        for stop in (*stops, *self._close):
            at = text.find(stop, pos)
            if 0 <= at < found:
                found, literal = at, stop
        if not literal and not final:
            longest = max(self._longest, max(map(len, stops), default=1))
            found -= partial_suffix(text, pos, (*stops, *self._close), longest)
        return found, literal


@cache
def _heads(literals: tuple[str, ...]) -> tuple[frozenset[str], int]:
    """Their first characters, and the length of the longest."""
    return frozenset(literal[0] for literal in literals), max(map(len, literals), default=1)

"""Calls written as JSON: ``{"name": ..., "arguments": {...}}``, one, several, or an array of them.

Keys come in any order. Arguments stream once the name is known; before that they are kept back.
"""

from __future__ import annotations

import json
import re
from json import JSONDecodeError
from typing import ClassVar

from normalizers.base import CallWriter
from normalizers.coerce import SchemaIndex
from normalizers.dialects import ARGUMENT_KEYS, CALL_KEYS, NAME_KEYS
from normalizers.dialects.arguments import ArgumentWriter, Malformed
from normalizers.dialects.json_object import ObjectReader
from normalizers.spec import FormatSpec

_SPACE = re.compile(r"\s*")
_KEY = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\w+)\s*:\s*""")
_KEY_START = re.compile(r"""(?:"(?:[^"\\]|\\.)*(?:"\s*|\\)?|'(?:[^'\\]|\\.)*(?:'\s*|\\)?|\w+\s*)\Z""")
_RAW_STOP = re.compile(r"""\\[\s\S]|["'{}\[\],]""")
_SKIP = re.compile(r"""\\[\s\S]|["{}\[\]]""")
_FENCE = re.compile(r"```\w*")
_SEPARATOR = re.compile(r"\s*[;,]?\s*")
_MAX_KEY = 1024
NOT_A_CALL = "not_a_call"


class JsonCalls:
    """One region of JSON calls."""

    __slots__ = (
        "_arguments",
        "_bare",
        "_calls",
        "_close",
        "_depth",
        "_fail_code",
        "_in_string",
        "_key",
        "_late",
        "_mark",
        "_name",
        "_nested",
        "_raw",
        "_raw_depth",
        "_reader",
        "_schemas",
        "_seen",
        "_span",
        "_state",
        "_wait",
        "done",
    )

    def __init__(self, spec: FormatSpec, writer: CallWriter, schemas: SchemaIndex, *, bare: bool) -> None:
        self.done = False
        self._calls = writer
        self._schemas = schemas
        self._bare = bare
        self._close = () if bare else spec.close
        self._arguments = ArgumentWriter(writer, schemas)
        self._span: list[str] = []
        self._mark = 0
        self._state = "between"
        self._depth = 0
        self._wait = False
        self._fail_code = ""
        self._in_string = ""
        self._seen = False
        self._reset()

    def _reset(self) -> None:
        self._name: str | None = None
        self._late: str | None = None
        self._reader: ObjectReader | None = None
        self._nested = 0
        self._key = ""
        self._raw: list[str] = []
        self._raw_depth = 0

    def step(self, text: str, pos: int, reason: str | None) -> int:
        self._mark = pos
        self._wait = False
        final = reason is not None
        while not self.done and not self._wait:
            try:
                pos = self._STATES[self._state](self, text, pos, final)
            except Malformed as exc:
                self._fail(exc.code)
            if final and pos == len(text) and self._wait:
                self._finish(text, pos, reason or "stop")
        if self._arguments.open:
            self._arguments.flush()
        self._span.append(text[self._mark : pos])
        return pos

    # -- between calls -------------------------------------------------------------------------

    def _between(self, text: str, pos: int, final: bool) -> int:
        if self._bare and self._depth == 0 and self._seen:
            return self._between_bare(text, pos, final)
        pos = _skip_space(text, pos)
        if pos == len(text):
            self._wait = True
            return pos
        if (end := self._marker(text, pos, final)) is not None:
            return end
        char = text[pos]
        if char == "{":
            self._state = "key"
            return pos + 1
        if char == "[" or char == "]":
            self._depth += 1 if char == "[" else -1
            self.done = self._depth <= 0 and not self._close
            return pos + 1
        if char in ",;":
            return pos + 1
        if char == "`":
            if not final and text[pos:] in ("`", "``"):
                self._wait = True
                return pos
            fence = _FENCE.match(text, pos)
            if fence and (fence.end() < len(text) or final):
                return fence.end()
            if fence:
                self._wait = True
                return pos
        if self._depth == 0 and not self._close:
            self.done = True
            return pos
        raise Malformed("syntax")

    def _between_bare(self, text: str, pos: int, final: bool) -> int:
        """Only a further call continues the region; anything else, and what leads up to it, is content."""
        separator = _SEPARATOR.match(text, pos)
        end = separator.end() if separator else pos
        if end == len(text) and not final:
            self._wait = True
        elif text.startswith("{", end):
            self._state = "key"
            return end + 1
        else:
            self.done = True
        return pos

    def _marker(self, text: str, pos: int, final: bool) -> int | None:
        """Behind the region's end marker; or the same place, with `_wait`, if it may be one."""
        for literal in self._close:
            if text.startswith(literal, pos):
                self.done = True
                return pos + len(literal)
            if not final and literal.startswith(text[pos:]):
                self._wait = True
                return pos
        return None

    # -- one call's object ---------------------------------------------------------------------

    def _read_key(self, text: str, pos: int, final: bool) -> int:
        pos = _skip_space(text, pos)
        if pos == len(text):
            self._wait = True
            return pos
        char = text[pos]
        if char == ",":
            return pos + 1
        if char == "}":
            if self._nested:
                self._nested -= 1
                return pos + 1
            self._complete(text, pos + 1)
            return pos + 1
        match = _KEY.match(text, pos)
        if match is None or (match.end() == len(text) and not final):
            if not final and (match or _KEY_START.match(text, pos)) and len(text) - pos < _MAX_KEY:
                self._wait = True
                return pos
            raise Malformed("syntax")
        self._key = match[1].strip("\"'")
        return self._begin_value(text, match.end())

    def _begin_value(self, text: str, pos: int) -> int:
        if self._bare and self._key not in CALL_KEYS:
            raise Malformed(NOT_A_CALL)
        char = text[pos : pos + 1]
        if self._key == "function" and char == "{":
            self._nested += 1
            return pos + 1
        if self._key in ARGUMENT_KEYS and char == "{" and self._name is not None:
            self._begin_arguments(self._name)
            self._state = "arguments"
            return pos
        self._raw = []
        self._raw_depth = 0
        self._state = "value"
        return pos

    def _begin_arguments(self, name: str) -> None:
        if self._bare and name not in self._schemas:
            raise Malformed("unknown_tool")
        if self._late is not None:
            raise Malformed("duplicate_key")
        self._arguments.begin(name)
        self._reader = ObjectReader(self._arguments)
        self._late = ""

    def _read_arguments(self, text: str, pos: int, final: bool) -> int:
        reader = self._reader
        assert reader is not None
        pos = reader.step(text, pos, final)
        if reader.done:
            if reader.mended:
                self._calls.mend("lexical")
            self._state = "key"
        else:
            self._wait = True
        return pos

    def _read_value(self, text: str, pos: int, final: bool) -> int:
        """A value that does not stream: its source is kept."""
        start = pos
        while True:
            found = _RAW_STOP.search(text, pos)
            if found is None:
                end = len(text)
                if not final and text.endswith("\\"):
                    end -= 1
                self._raw.append(text[start:end])
                self._wait = True
                return end
            piece, pos = found.group(), found.end()
            if self._in_string:
                if piece == self._in_string:
                    self._in_string = ""
                continue
            if piece in "\"'":
                self._in_string = piece
            elif piece in "{[":
                self._raw_depth += 1
            elif piece in "}],":
                if self._raw_depth == 0:
                    self._raw.append(text[start : found.start()])
                    self._keep_value("".join(self._raw).strip())
                    self._state = "key"
                    return found.start()
                self._raw_depth -= piece != ","

    def _keep_value(self, raw: str) -> None:
        if self._key in ARGUMENT_KEYS:
            self._late = raw
        elif self._key in NAME_KEYS or (self._key == "function" and raw[:1] in "\"'"):
            value = _loads(raw)
            if not isinstance(value, str) or not value.strip():
                raise Malformed("call_without_name")
            self._name = value.strip()

    def _complete(self, text: str, end: int) -> None:
        if self._name is None:
            raise Malformed("call_without_name")
        if self._reader is None:
            late = self._late
            self._late = None
            self._begin_arguments(self._name)
            self._write_late(late)
        self._span.append(text[self._mark : end])
        self._mark = end
        raw = "".join(self._span)
        self._span.clear()
        self._arguments.end(raw)
        self._reset()
        self._state = "between"
        self._seen = True

    def _write_late(self, raw: str | None) -> None:
        """Arguments that came before the name, or as a string of JSON, or not at all."""
        if raw and raw[0] in "\"'":
            raw = str(_loads(raw)).strip()
            self._calls.mend("lexical")
        if not raw or raw in ("null", "None"):
            raw = "{}"
        assert self._reader is not None
        end = self._reader.step(raw, 0, True)
        if not self._reader.done or raw[end:].strip():
            raise Malformed("arguments_not_an_object")

    # -- ends and failures ---------------------------------------------------------------------

    def _fail(self, code: str) -> None:
        """The current call cannot be read: skip to the end of its object."""
        self._fail_code = code
        reader = self._reader
        self._raw_depth = 0 if self._state == "between" else 1 + self._nested + (reader.depth if reader else 0)
        self._in_string = reader.in_string if reader else ""
        self._arguments.abandon()
        self._state = "skip"

    def _skip(self, text: str, pos: int, final: bool) -> int:
        while True:
            found = _SKIP.search(text, pos) if self._raw_depth else None
            at = found.start() if found else len(text)
            for literal in self._close:
                if (marker := text.find(literal, pos, at + 1)) >= 0:
                    self._refuse(text, marker)
                    self.done = True
                    self._mark = marker + len(literal)
                    return self._mark
            if self._bare:
                self._refuse(text, pos)
                self.done = True
                return pos
            if found is None:
                end = len(text)
                if not final:
                    end -= _partial_length(text, pos, self._close) or text.endswith("\\", pos)
                self._wait = True
                return end
            piece, pos = found.group(), found.end()
            if piece == '"':
                self._in_string = "" if self._in_string else '"'
            elif not self._in_string and piece in "{[":
                self._raw_depth += 1
            elif not self._in_string and piece in "}]":
                self._raw_depth -= 1
                if self._raw_depth == 0:
                    self._refuse(text, pos)
                    self._state = "between"
                    return pos

    def _refuse(self, text: str, pos: int) -> None:
        self._span.append(text[self._mark : pos])
        self._mark = pos
        raw = "".join(self._span)
        raw = raw if self._bare else raw.strip()
        self._span.clear()
        self._reset()
        self._in_string = ""
        self._calls.text(raw)
        if self._fail_code != NOT_A_CALL:
            self._calls.warn(self._fail_code, raw)

    def _finish(self, text: str, pos: int, reason: str) -> None:
        if self._state == "between":
            pass
        elif reason == "length" and self._state != "skip":
            self._arguments.abandon()
            self._span.append(text[self._mark : pos])
            self._mark = pos
            self._calls.warn("truncated_call", "".join(self._span))
        else:
            if self._state != "skip":
                self._fail("unfinished_call")
            self._refuse(text, pos)
        self.done = True

    _STATES: ClassVar = {
        "between": _between,
        "key": _read_key,
        "value": _read_value,
        "arguments": _read_arguments,
        "skip": _skip,
    }


def _loads(raw: str) -> object:
    try:
        return json.loads(raw, strict=False)
    except JSONDecodeError:
        if len(raw) > 1 and raw[0] == raw[-1] == "'":
            return raw[1:-1].replace("\\'", "'")
        raise Malformed("syntax") from None


def _skip_space(text: str, pos: int) -> int:
    match = _SPACE.match(text, pos)
    return match.end() if match else pos


def _partial_length(text: str, pos: int, literals: tuple[str, ...]) -> int:
    longest = max(map(len, literals), default=1)
    for at in range(max(pos, len(text) - longest + 1), len(text)):
        if any(literal.startswith(text[at:]) for literal in literals):
            return len(text) - at
    return 0

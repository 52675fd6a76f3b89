"""Calls written as JSON: ``{"name": ..., "arguments": {...}}``, one, several or an array of them.

Keys come in any order. Arguments stream once the name is known; until then they are held back.
"""

from __future__ import annotations

import json
import re

from normalizers.base import CallWriter
from normalizers.read import ARGUMENT_KEYS, CALL_KEYS, NAME_KEYS
from normalizers.read.region import NOT_A_CALL, Region, Search
from normalizers.read.scan import MAX_BLANKS, Wait, skip_space
from normalizers.spec import FormatSpec
from normalizers.values.coerce import SchemaIndex
from normalizers.values.loose_json import CURLY, Malformed, ObjectReader

_OPENING, _CLOSING = "".join(CURLY), "".join({*CURLY.values()})
_KEY = re.compile(rf"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[{_OPENING}]\w+[{_CLOSING}]|\w+)\s*(?::|：|=>?)\s*""")
_KEY_START = re.compile(
    rf"""(?:"(?:[^"\\]|\\.)*(?:"\s*|\\)?|'(?:[^'\\]|\\.)*(?:'\s*|\\)?|[{_OPENING}]\w*(?:[{_CLOSING}]\s*)?|\w+\s*)\Z"""
)
_RAW_STOP = re.compile(rf"""\\[\s\S]|["'{{}}\[\],;，；{_OPENING}{_CLOSING}]""")
_AFTER_STRING = re.compile(rf"\s{{0,{MAX_BLANKS}}}([:=：,}}\];，；])?")
"""A typographic quote that isn't before one of these signs stands within the string: an apostrophe, say."""
_QUOTES = f"\"'{_OPENING}{_CLOSING}"
_SKIP = re.compile(r"""\\[\s\S]|["{}\[\]]""")
_FENCE = re.compile(r"```\w*")
_MAX_KEY = 1024


class JsonCalls(Region):
    """One region of JSON calls."""

    __slots__ = (
        "_argument_keys",
        "_depth",
        "_in_string",
        "_key",
        "_late",
        "_name",
        "_name_keys",
        "_nested",
        "_raw",
        "_raw_depth",
        "_reader",
    )

    def __init__(
        self, spec: FormatSpec, writer: CallWriter, schemas: SchemaIndex, *, bare: bool, opener: str = ""
    ) -> None:
        super().__init__(spec, writer, schemas, bare=bare, opener=opener)
        self._name_keys = NAME_KEYS.union(spec.keys[:1])
        self._argument_keys = ARGUMENT_KEYS.union(spec.keys[1:])
        self._depth = 0
        self._in_string = ""
        self._reset()

    def _reset(self) -> None:
        self._name: str | None = None
        self._late: str | None = None
        self._reader: ObjectReader | None = None
        self._nested = 0
        self._key = ""
        self._raw: list[str] = []
        self._raw_depth = 0

    # -- between calls -------------------------------------------------------------------------

    def _string_stop(self) -> Search | None:
        return self._reader.stop if self._reader else None

    def _begin(self, text: str, pos: int, final: bool) -> int:
        if self._bare and self._depth == 0 and self._seen:
            self.done = True
            return pos
        pos = skip_space(text, pos)
        if pos == len(text):
            self._wait = True
            return pos
        if (end := self._marker(text, pos, final)) is not None:
            return self._end_region(text, pos, end)
        char = text[pos]
        if char == "{":
            self._state = type(self)._read_key
            return pos + 1
        if not self._seen and (end := self._opener(text, pos, final)):
            return end
        if char == "[" or char == "]":
            self._depth += 1 if char == "[" else -1
            self.done = self._depth <= 0 and not self._close
            return pos + 1
        if char in ",;":
            return pos + 1
        if char == "`":
            fence = _FENCE.match(text, pos)
            if not final and (text[pos:] in ("`", "``") or (fence and fence.end() == len(text))):
                raise Wait
            if fence:
                return fence.end()
        if self._depth == 0 and self._seen and not self._close:
            self.done = True
            return pos
        raise Malformed("syntax")

    # -- one call's object ---------------------------------------------------------------------

    def _read_key(self, text: str, pos: int, final: bool) -> int:
        pos = skip_space(text, pos)
        if pos == len(text):
            self._wait = True
            return pos
        char = text[pos]
        if char in ",;，；":
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
                if self._bare and match is None and not _may_be_call_key(text[pos:]):
                    raise Malformed(NOT_A_CALL)
                self._wait = True
                return pos
            raise Malformed("syntax")
        self._key = match[1].strip(_QUOTES)
        return self._begin_value(text, match.end())

    def _begin_value(self, text: str, pos: int) -> int:
        if self._bare and self._key not in CALL_KEYS:
            raise Malformed(NOT_A_CALL)
        char = text[pos : pos + 1]
        if self._key == "function" and char == "{":
            self._nested += 1
            return pos + 1
        if char == "{" and (name := self._name_of_arguments()) is not None:
            self._name = name
            self._begin_arguments(name)
            self._state = type(self)._read_arguments
            return pos
        if self._bare and self._key in self._name_keys and char not in _QUOTES:
            raise Malformed(NOT_A_CALL)
        self._raw = []
        self._raw_depth = 0
        self._state = type(self)._read_value
        return pos

    def _name_of_arguments(self) -> str | None:
        """The tool whose arguments the present key begins; None if they can't be written yet, or it begins none."""
        if self._key in self._argument_keys and self._name is not None:
            return self._name
        # Where the tool's name is the key, an object under a second name is another call's.
        named = not self._spec.keys and (self._key in self._schemas or self._key not in CALL_KEYS)
        return self._key if named else None

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
            if reader.repaired:
                self._calls.repaired("lexical")
            self._state = type(self)._read_key
        else:
            self._wait = True
        return pos

    def _read_value(self, text: str, pos: int, final: bool) -> int:
        """Collect the source of a value that doesn't stream."""
        start = pos
        while True:
            found = _RAW_STOP.search(text, pos)
            if found is None:
                end = len(text)
                if not final and text.endswith("\\", pos):
                    end -= 1
                self._raw.append(text[start:end])
                if self._bare and self._key in self._name_keys:
                    self._check_name(self._raw[-1])
                self._wait = True
                return end
            piece, pos = found.group(), found.end()
            if self._in_string:
                if piece == self._in_string and not self._ends_string(piece, text, pos, final):
                    self._raw.append(text[start : found.start()])
                    self._wait = True
                    return found.start()
                continue
            if piece in _QUOTES:
                self._in_string = CURLY.get(piece, piece)
            elif piece in "{[":
                self._raw_depth += 1
            elif piece in "}],;，；":
                if self._raw_depth == 0:
                    self._raw.append(text[start : found.start()])
                    try:
                        self._keep_value("".join(self._raw).strip())
                    except Malformed as exc:
                        exc.pos = found.start()
                        raise
                    self._state = type(self)._read_key
                    return found.start()
                self._raw_depth -= piece in "}]"

    def _check_name(self, piece: str) -> None:
        """Raises `Malformed` if the name that goes on with this piece can't be that of a tool, so that no other JSON is
        held back."""
        if piece.strip().strip(_QUOTES) and not self._calls.expects("".join(self._raw).strip().strip(_QUOTES)):
            raise Malformed(NOT_A_CALL)

    def _ends_string(self, quote: str, text: str, pos: int, final: bool) -> bool:
        """End the string at the quote before `pos`, unless it is an apostrophe; False if only more text tells."""
        if quote in "\"'":
            self._in_string = ""
            return True
        after = _AFTER_STRING.match(text, pos)
        assert after is not None
        if after[1]:
            self._in_string = ""
        return after[1] is not None or final or after.end() < len(text)

    def _keep_value(self, raw: str) -> None:
        if self._key in self._argument_keys:
            self._late = raw
        elif self._key in self._name_keys or (self._key == "function" and raw[:1] in _QUOTES):
            value = _loads(raw)
            if not isinstance(value, str) or not value.strip():
                raise Malformed("call_without_name")
            self._name = value.strip()
            if self._bare and not self._calls.expects(self._name):
                raise Malformed(NOT_A_CALL)

    def _complete(self, text: str, end: int) -> None:
        if self._name is None:
            # Without a mark, an object that names no tool is JSON in the text: `{"type": "number"}`.
            raise Malformed(NOT_A_CALL if self._bare else "call_without_name")
        if self._reader is None:
            late = self._late
            self._late = None
            self._begin_arguments(self._name)
            self._write_late(late)
        super()._complete(text, end)
        self._reset()

    def _write_late(self, raw: str | None) -> None:
        """Write arguments that came before the name, as a string of JSON, or not at all."""
        if raw and raw[0] in _QUOTES:
            raw = str(_loads(raw)).strip()
            self._calls.repaired("lexical")
        if not raw or raw in ("null", "None"):
            raw = "{}"
        assert self._reader is not None
        try:
            end = self._reader.step(raw, 0, True)
        except Malformed as exc:
            exc.pos = None
            raise
        if not self._reader.done or raw[end:].strip():
            raise Malformed("arguments_not_an_object")

    # -- failures ------------------------------------------------------------------------------

    def _unfinished(self) -> bool:
        return self._state not in (type(self)._begin, type(self)._skip)

    def _is_undeclared(self) -> bool:
        return self._name is not None and self._calls.refuses(self._name)

    def _prepare_skip(self) -> None:
        reader = self._reader
        self._raw_depth = 0
        if self._state is not type(self)._begin:
            self._raw_depth = 1 + self._nested + (reader.depth if reader else 0)
        self._in_string = reader.in_string if reader else ""

    def _skip(self, text: str, pos: int, final: bool) -> int:
        """Read to the end of the call's object, or of the region."""
        while True:
            found = _SKIP.search(text, pos) if self._raw_depth else None
            at = found.start() if found else len(text)
            marker, literal = self._marker_up_to(text, pos, at, final)
            if literal:
                self._refuse(text, marker)
                return self._end_region(text, marker, marker + len(literal))
            held = len(text) if final else self._cut_marker(text, pos, at)
            if found is None or held < len(text):
                self._wait = True
                return held if final or held < len(text) else len(text) - text.endswith("\\", pos)
            piece, pos = found.group(), found.end()
            if piece == '"':
                self._in_string = "" if self._in_string else '"'
            elif not self._in_string and piece in "{[":
                self._raw_depth += 1
            elif not self._in_string and piece in "}]":
                self._raw_depth -= 1
                if self._raw_depth == 0:
                    self._refuse(text, pos)
                    return pos

    def _refuse(self, text: str, pos: int) -> None:
        super()._refuse(text, pos)
        self._reset()
        self._in_string = ""
        self._state = type(self)._begin


def _may_be_call_key(text: str) -> bool:
    """Whether an unfinished key may become one of a call."""
    begun = text.rstrip().strip(_QUOTES)
    return any(key.startswith(begun) for key in CALL_KEYS)


def _loads(raw: str) -> object:
    try:
        return json.loads(raw, strict=False)
    except (ValueError, RecursionError):  # also for an integer of 5,000 digits
        if len(raw) > 1 and raw[0] == raw[-1] == "'":
            return raw[1:-1].replace("\\'", "'")
        if len(raw) > 1 and CURLY.get(raw[0]) == raw[-1]:
            return raw[1:-1]
        raise Malformed("syntax") from None

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
from normalizers.values.coerce import SchemaIndex, read_container
from normalizers.values.fit import fits
from normalizers.values.loose_json import CURLY, Malformed, ObjectReader
from normalizers.values.strict_json import loads

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
_NULLS = ("", "null", "None")
_OWN_KEYS = frozenset({"id", "type", "index", "call_id", "tool_call_id"})
"""Keys of a call that its tool needn't know."""

_OPEN = ("additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf")
"""What a schema may take more values by than its properties."""


class JsonCalls(Region):
    """One region of JSON calls."""

    __slots__ = (
        "_argument_keys",
        "_depth",
        "_in_string",
        "_key",
        "_name",
        "_name_keys",
        "_named_in",
        "_nested",
        "_raw",
        "_raw_depth",
        "_reader",
        "_values",
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
        self._named_in = 0
        """How deep the name stands."""
        self._values: list[tuple[int, str, str]] = []
        """The values that don't stream: how deep they stand, their keys and their sources."""
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
            if self._reader is not None or self._wrapped():
                raise Malformed("duplicate_key")
            self._name, self._named_in = name, self._nested
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
            return None if self._may_be_parameter(self._name, self._key) else self._name
        # Where the tool's name is the key, an object under a second name is another call's.
        named = not self._spec.keys and (self._key in self._schemas or self._key not in CALL_KEYS)
        return self._key if named else None

    def _begin_arguments(self, name: str) -> None:
        if self._bare and name not in self._schemas:
            raise Malformed("unknown_tool")
        self._arguments.begin(name)
        self._reader = ObjectReader(self._arguments)

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
                    self._check_name()
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

    def _check_name(self) -> None:
        """Raises `Malformed` if the name that has begun can't be that of a tool, so that no other JSON is held back.

        Judges only what the end of the name would: not white space around it, nor what follows an escape.
        """
        if len(self._raw) > _MAX_KEY:
            return  # to put it together again and again would take too long
        begun = "".join(self._raw).lstrip()[1:].partition("\\")[0]
        if not self._calls.expects(begun.strip().rstrip(_QUOTES).rstrip()):
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
        if self._key not in self._name_keys and (self._key != "function" or raw[:1] not in _QUOTES):
            self._values.append((self._nested, self._key, raw))
            return
        value = _loads(raw)
        if not isinstance(value, str) or not value.strip():
            raise Malformed("call_without_name")
        name = value.strip()
        if self._bare and not self._calls.expects(name):
            raise Malformed(NOT_A_CALL)
        if self._name not in (None, name):
            if self._key not in self._schemas.parameters(self._name or ""):
                raise Malformed("duplicate_key")
            self._values.append((self._nested, self._key, raw))
            return
        self._name, self._named_in = name, self._nested

    def _complete(self, text: str, end: int) -> None:
        if self._name is None:
            # Without a mark, an object that names no tool is JSON in the text: `{"type": "number"}`.
            raise Malformed(NOT_A_CALL if self._bare else "call_without_name")
        if self._reader is None:
            source = self._source(self._name)
            self._begin_arguments(self._name)
            self._write_arguments(source)
        elif self._wrapped() or any(key not in _OWN_KEYS for key, _ in self._flat(self._name)):
            raise Malformed("duplicate_key")
        super()._complete(text, end)
        self._reset()

    # -- arguments that don't stream -----------------------------------------------------------

    def _may_be_parameter(self, name: str, key: str) -> bool:
        """Whether the tool has a parameter with this key of all arguments, which isn't the format's own."""
        return key != "arguments" and key not in self._spec.keys and key in self._schemas.parameters(name)

    def _wrapped(self) -> list[tuple[str, str]]:
        """The keys and sources of values that may be all arguments."""
        return [(key, raw) for _, key, raw in self._values if key in self._argument_keys and raw not in _NULLS]

    def _flat(self, name: str) -> list[tuple[str, str]]:
        """The keys and sources of values beside the name that are parameters of its tool."""
        parameters = self._schemas.parameters(name)
        beside = [(key, raw) for depth, key, raw in self._values if depth == self._named_in and key in parameters]
        own = ("arguments", *self._spec.keys)
        return [value for value in beside if value[0] not in own and value != ("type", '"function"')]

    def _source(self, name: str) -> str:
        """The source of arguments that came before the name, or beside it. Raises `Malformed` rather than drop one: the
        call would do something else."""
        wrapped, flat = self._wrapped(), self._flat(name)
        if self._calls.refuses(name):
            return wrapped[0][1] if wrapped else "{}"  # the call is text anyway
        if len(wrapped) > len(self._argument_keys):
            raise Malformed("duplicate_key")
        whole = [value for value in wrapped if value not in flat or self._are_arguments(name, *value)]
        if len(whole) == 1 and all(value in whole or value[0] in _OWN_KEYS for value in flat):
            return whole[0][1]
        kept = dict(flat)
        given = {key for _, key, raw in self._values if raw not in _NULLS}
        dropped = given - kept.keys() - _OWN_KEYS
        if whole or len(kept) < len(flat) or (dropped and (self._bare or self._takes_any(name))):
            raise Malformed("syntax")
        if kept:
            self._calls.repaired("schema")
        return f"{{{', '.join(f'{json.dumps(key)}: {raw}' for key, raw in flat)}}}"

    def _takes_any(self, name: str) -> bool:
        """Whether the tool may take a value: of one that takes none, a word beside the name can't be an argument."""
        declared = name in self._schemas and not self._schemas.parameters(name)
        return not declared or any(map(self._schemas.schema(name).get, _OPEN))

    def _are_arguments(self, name: str, key: str, raw: str) -> bool:
        """Whether what stands under a key that is also a parameter is all arguments of the tool: an object that fits
        them, or one with some of them that isn't what the parameter takes."""
        text = str(_loads(raw)).strip() if raw[0] in _QUOTES else raw
        source = read_container(text) if text[:1] == "{" else None
        value = None if source is None else loads(source)
        if not isinstance(value, dict):
            return False
        parameters = self._schemas.parameters(name)
        if value.keys() <= parameters.keys() and fits(value, self._schemas.schema(name)):
            return True
        own = self._schemas.parameter(name, key)
        return text is raw and not value.keys().isdisjoint(parameters) and own is not None and not fits(value, own)

    def _write_arguments(self, raw: str) -> None:
        """Write arguments whose source is complete, also as a string of JSON."""
        if raw[0] in _QUOTES:
            raw = str(_loads(raw)).strip()
            self._calls.repaired("lexical")
        if raw in _NULLS:
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

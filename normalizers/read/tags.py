"""Calls whose parameters are plain text between tags; the tool's schema gives their types.

``<function=f><parameter=city>Paris</parameter></function>`` and its relatives. A value that can only
be a string streams. Any other is collected to its end and read as the first type that fits.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache

from normalizers.base import CallWriter
from normalizers.read.json_calls import JsonCalls
from normalizers.read.region import Region, Search
from normalizers.read.scan import (
    MAX_BLANKS,
    Template,
    Wait,
    match_template,
    partial_suffix,
    skip_space,
    templates,
)
from normalizers.spec import FormatSpec, TagSyntax, on_lines
from normalizers.values.coerce import SchemaIndex, read_json
from normalizers.values.literals import json_string_body
from normalizers.values.loose_json import Malformed, ObjectReader


@cache
def _not_plain(mark: str) -> Search:
    return re.compile(rf'[{re.escape(mark)}"\\\x00-\x1f]').search


@cache
def _json_format(spec: FormatSpec) -> FormatSpec:
    """The format of JSON calls that stand in a call's tags each."""
    assert isinstance(spec.syntax, TagSyntax)
    return replace(spec, dialect="json", syntax=None, close=spec.syntax.call_end)


def _leads(sources: tuple[str, ...]) -> tuple[Template, ...]:
    """The parts of templates before their first field."""
    leads = dict.fromkeys(source.partition("{")[0] for source in sources)
    return templates(tuple(lead for lead in leads if lead), tags=True)


def _others(literals: tuple[str, ...], one: str) -> tuple[str, ...]:
    return tuple(literal for literal in literals if literal != one)


def _short_space(text: str, pos: int) -> int:
    """The end of the white space at `pos`, of the part that may be read again and again."""
    return min(skip_space(text, pos), pos + MAX_BLANKS)


_STRING = frozenset({"string"})
_CDATA, _CDATA_END = "<![CDATA[", "]]>"
_WRAPPERS = ("arguments", "input", "parameters")


class TagCalls(Region):
    """One region of calls between tags.

    A value ends at its own closing tag if a tag follows that may come next; any other tag is part of it. Models also
    leave the closing tag out. Then the value ends where a tag at the start of a line, or a special token, does its
    work: the call's end before another call or the region's end, or the next parameter if the tool has it.
    """

    __slots__ = (
        "_call",
        "_calls_begin",
        "_cdata",
        "_closers",
        "_empty",
        "_end",
        "_end_head",
        "_ends_call",
        "_entities",
        "_followers",
        "_fresh",
        "_gap",
        "_given",
        "_json",
        "_json_leads",
        "_key",
        "_line_start",
        "_lines",
        "_newline",
        "_parameter",
        "_reader",
        "_special",
        "_stopped",
        "_streams",
        "_text",
        "_types",
        "_unquote",
        "_wrapped",
        "_wraps",
    )

    def __init__(
        self, spec: FormatSpec, writer: CallWriter, schemas: SchemaIndex, *, bare: bool, opener: str = ""
    ) -> None:
        super().__init__(spec, writer, schemas, bare=bare, opener=opener)
        syntax = spec.syntax
        assert isinstance(syntax, TagSyntax)
        self._call = templates(syntax.call, tags=True)
        self._empty = templates(syntax.empty_call, tags=True)
        self._parameter = templates(syntax.parameter, tags=True)
        self._end = templates(syntax.parameter_end, tags=True)
        self._end_head = syntax.parameter_end[0][0]
        # Only the shortest: where one begins like another, the split would decide which of them is found.
        self._call_end = self._stops = tuple(
            end for end in syntax.call_end if not end.startswith(_others(syntax.call_end, end))
        )
        self._ends_call = templates(syntax.call_end, tags=True)
        self._closers = templates(spec.close)
        self._calls_begin = _leads(syntax.call)
        self._followers = (*_leads(syntax.parameter), *self._calls_begin, *self._ends_call, *self._closers)
        leads = (source.partition("{")[0] for source in syntax.call)
        self._json_leads = tuple(dict.fromkeys(lead for lead in leads if lead and syntax.call_end))
        self._given: set[str] = set()
        self._key = ""
        self._types: frozenset[str] | None = None
        """What the present value may be, by its schema and its tag."""
        self._text: list[str] = []
        self._special = syntax.special
        self._unquote = syntax.unquote
        self._entities = syntax.entities
        self._cdata = syntax.cdata
        self._gap = syntax.gap
        self._lines = on_lines(spec, syntax)
        self._reader: ObjectReader | None = None
        self._streams = self._fresh = self._json = False
        self._newline = self._line_start = False
        self._wrapped = self._wraps = self._stopped = False

    def _string_stop(self) -> Search | None:
        if self._state is type(self)._read_value:
            return None if self._line_start or self._fresh else _not_plain(self._end_head)
        if self._state is type(self)._read_cdata:
            return _not_plain(_CDATA_END[0])
        return self._reader.stop if self._reader else None

    # -- tags ----------------------------------------------------------------------------------

    def _begin(self, text: str, pos: int, final: bool) -> int:
        start = pos
        pos = self._blank_end(text, pos) if self._seen else skip_space(text, pos)
        if pos == len(text):
            self._wait = True
            return start if self._seen else pos
        if (end := self._marker(text, pos, final)) is not None:
            return self._end_region(text, pos, end)
        if not self._seen and (end := self._opener(text, pos, final)):
            return end
        if text[pos] in "{[" and not self._seen:
            self._hand_over(JsonCalls(self._spec, self._calls, self._schemas, bare=self._bare))
            return pos
        if end := self._json_in_call(text, pos, final):
            self._hand_over(JsonCalls(_json_format(self._spec), self._calls, self._schemas, bare=self._bare))
            return end
        if empty := match_template(self._empty, text, pos, final=final):
            self._arguments.begin(empty["name"])
            self._complete(text, empty.end())
            return empty.end()
        call = match_template(self._call, text, pos, final=final)
        if call is None:
            if self._seen:
                self.done = True
                return start
            raise Malformed("syntax")
        self._pass_span(text, pos)
        self._arguments.begin(call["name"])
        self._given.clear()
        self._state = type(self)._between_parameters
        return call.end()

    def _json_in_call(self, text: str, pos: int, final: bool) -> int:
        """Where a JSON call begins that stands in a call's tags; 0 if none does. Raises `Wait`."""
        for lead in self._json_leads:
            if text.startswith(lead, pos):
                at = skip_space(text, pos + len(lead))
                if at == len(text) and not final:
                    raise Wait
                if text.startswith("{", at):
                    return at
        return 0

    def _between_parameters(self, text: str, pos: int, final: bool) -> int:
        pos = skip_space(text, pos)
        if pos == len(text):
            self._wait = True
            return pos
        if parameter := match_template(self._parameter, text, pos, final=final):
            groups = parameter.groupdict()
            self._begin_value(self._key_in(parameter), groups.get("string") or groups.get("type"))
            return parameter.end()
        if ended := match_template(self._ends_call, text, pos, final=final):
            self._complete(text, ended.end())
            return ended.end()
        if (end := self._marker(text, pos, final)) is not None:
            self._complete(text, pos)
            return self._end_region(text, pos, end)
        if self._call_end and match_template(self._call, text, pos, final=final):
            self._complete(text, pos)
            return pos
        if text[pos] == "{" and not self._arguments.count:
            self._reader = ObjectReader(self._arguments, closes=False)
            self._state = type(self)._read_object
            return pos
        raise Malformed("syntax")

    def _read_object(self, text: str, pos: int, final: bool) -> int:
        """Read all arguments as one JSON object in place of the parameters."""
        assert self._reader is not None
        pos = self._reader.step(text, pos, final)
        if self._reader.done:
            self._state = type(self)._between_parameters
        else:
            self._wait = True
        return pos

    def _key_in(self, parameter: re.Match[str]) -> str:
        key = parameter["key"].strip()
        return key.replace("&quot;", '"').replace("&amp;", "&") if self._entities else key

    # -- values --------------------------------------------------------------------------------

    def _begin_value(self, key: str, string: str | None) -> None:
        arguments = self._arguments
        types = self._schemas.types(arguments.name, key)
        if string in ("true", "string") and types is not None and "string" in types:
            types = _STRING
        self._key, self._types = key, types
        self._json = string not in (None, "true", "string")
        self._wraps = (
            key in _WRAPPERS
            and not arguments.count
            and arguments.name in self._schemas
            and key not in self._schemas.parameters(arguments.name)
        )
        free = types is None or (types == _STRING and self._schemas.choices(arguments.name, key) is None)
        self._streams = free and not self._json and not self._wraps
        self._fresh = True
        self._newline = self._line_start = self._wrapped = self._stopped = False
        self._text = []
        self._given.add(key)
        self._state = type(self)._open_value if self._cdata else type(self)._read_value

    def _open_value(self, text: str, pos: int, final: bool) -> int:
        """Look whether the value stands in CDATA."""
        at = skip_space(text, pos)
        if text.startswith(_CDATA, at):
            if self._streams:
                self._arguments.argument(self._key)
                self._arguments.begin_string()
            self._state = type(self)._read_cdata
            return at + len(_CDATA)
        if not final and at - pos <= MAX_BLANKS and _CDATA.startswith(text[at:]):
            raise Wait
        self._state = type(self)._read_value
        return pos

    def _read_cdata(self, text: str, pos: int, final: bool) -> int:
        at = text.find(_CDATA_END, pos)
        while at >= 0:
            try:
                end = self._cdata_ends(text, at + len(_CDATA_END), final)
            except Wait:
                break
            if end:
                self._raw_text(text[pos:at])
                self._finish_value()
                return end
            at = text.find(_CDATA_END, at + 1)
        self._wait = True
        stop = at
        if at < 0:
            stop = len(text) - (0 if final else partial_suffix(text, pos, (_CDATA_END,), len(_CDATA_END)))
        self._raw_text(text[pos:stop])
        return stop

    def _cdata_ends(self, text: str, pos: int, final: bool) -> int:
        """The position after the value's closing tag, if it follows the end of the CDATA; else 0."""
        after = _short_space(text, pos)
        if after == len(text) and not final:
            raise Wait
        closing = match_template(self._end, text, after, final=final)
        return closing.end() if closing else 0

    def _raw_text(self, text: str) -> None:
        if self._streams:
            self._arguments.string(json_string_body(text))
        elif text:
            self._text.append(text)

    def _finish_value(self) -> None:
        if self._streams:
            self._arguments.end_argument()
        else:
            self._typed_value("".join(self._text))
        self._state = type(self)._between_parameters

    def _read_value(self, text: str, pos: int, final: bool) -> int:
        size = len(text)
        if self._fresh and pos < size:
            self._fresh = False
            if text[pos] == "\n" and self._gap:
                # One line break after the opening tag and one before the closing tag are layout. Where values have no
                # lines of their own, the first is part of the value if the second is missing.
                self._wrapped = self._line_start = True
                self._streams &= self._lines
                pos += 1
            elif self._unquote and text[pos] == '"':
                self._streams = False
            if self._streams:
                self._arguments.argument(self._key)
                self._arguments.begin_string()
        mark = self._end_head
        at = text.find(mark, pos)
        while at >= 0:
            alone = self._special or (text[at - 1] == "\n" if at > pos else self._line_start)
            try:
                end = self._value_ends(text, at, final, alone=alone)
            except Wait:
                self._stopped = final
                break
            if end is not None:
                self._value_text(text[pos:at])
                try:
                    self._end_value(layout=self._wrapped or end == at)
                except Malformed as exc:
                    exc.pos = at
                    raise
                return end
            at = text.find(mark, at + 1)
        self._wait = True
        stop = size if at < 0 else at
        self._value_text(text[pos:stop])
        return stop

    def _value_ends(self, text: str, at: int, final: bool, *, alone: bool) -> int | None:
        """The position after the closing tag at `at`, or of a tag that replaces it; None if the value goes on.

        alone: the tag is at the start of a line, or a special token. Raises `Wait`, also at the text's end: there a
        tag that would end more than this value does so only if the model stopped by itself.
        """
        if closing := match_template(self._end, text, at, final=final):
            after = skip_space(text, closing.end())
            if after == len(text):
                if final:
                    return closing.end()
                raise Wait
            return closing.end() if match_template(self._followers, text, after, final=final) else None
        if ended := match_template(self._ends_call, text, at, final=final):
            return at if self._ends_here(text, ended.end(), final, alone=alone) else None
        if match_template(self._closers, text, at, final=final):
            self._wait_for_stop(text, at, final)
            return None
        if alone and (parameter := match_template(self._parameter, text, at, final=final)):
            return at if self._replaces(text, parameter, final) else None
        return None

    def _ends_here(self, text: str, pos: int, final: bool, *, alone: bool) -> bool:
        """Whether the tag before `pos` ends the call, and so a value without a closing tag."""
        after = _short_space(text, pos)
        if after == len(text):
            if alone or not final:
                raise Wait
            return False
        if not alone:
            self._wait_for_stop(text, after, final)
            return False
        return match_template((*self._closers, *self._calls_begin), text, after, final=final) is not None

    def _wait_for_stop(self, text: str, pos: int, final: bool) -> None:
        """Raise `Wait` while the region's end marker at `pos` may be the last of the answer."""
        closed = match_template(self._closers, text, pos, final=final)
        if closed and _short_space(text, closed.end()) == len(text):
            raise Wait

    def _replaces(self, text: str, parameter: re.Match[str], final: bool) -> bool:
        """Whether a parameter's opening tag may stand for the closing tag of the value before it."""
        arguments = self._arguments
        key = self._key_in(parameter)
        declared = self._schemas.parameters(arguments.name)
        if key in self._given or (declared and key not in declared):
            return False
        # Where values stand on lines of their own, so do the tags.
        end = parameter.end()
        if self._wrapped and end == len(text) and not final:
            raise Wait
        return not self._wrapped or text[end : end + 1] in ("\n", "")

    def _value_text(self, text: str) -> None:
        if not text:
            return
        if self._newline:
            text = "\n" + text
        self._newline = self._line_start = text.endswith("\n")
        if self._newline:
            text = text[:-1]
        self._raw_text(text)

    def _end_value(self, *, layout: bool) -> None:
        if self._wrapped and not self._newline and not self._lines:
            self._text.insert(0, "\n")
        if self._newline and not layout:
            self._newline = False
            self._raw_text("\n")
        self._finish_value()

    def _typed_value(self, text: str) -> None:
        arguments = self._arguments
        name = arguments.name
        if self._wraps and self._unwrap(text):
            return
        types = self._types
        if self._unquote and len(text) > 1 and text[0] == text[-1] == '"' and (types is None or "string" in types):
            value = read_json(text) or json.dumps(text[1:-1], ensure_ascii=False)
        else:
            value = (read_json(text) if self._json and types != _STRING else None) or self._schemas.text(
                name, self._key, text, types
            )
        arguments.argument(self._key)
        arguments.value(value)
        arguments.end_argument()

    def _unwrap(self, text: str) -> bool:
        """Read all arguments from an undeclared ``arguments`` or ``input``; False if they don't fit the tool."""
        source = read_json(text)
        if source is None or source[:1] != "{":
            return False
        if not json.loads(source).keys() <= self._schemas.parameters(self._arguments.name).keys():
            return False
        ObjectReader(self._arguments, closes=False).step(source, 0, True)
        self._calls.repaired("schema")
        return True

    # -- failures ------------------------------------------------------------------------------

    def _close_at_stop(self, text: str, pos: int) -> bool:
        """The model stopped after a value, or within one: only closing tags are missing."""
        if self._state is type(self)._read_value:
            self._end_value(layout=self._wrapped or self._stopped)
        elif self._state is not type(self)._between_parameters:
            return False
        self._complete(text, pos)
        return True

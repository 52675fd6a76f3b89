"""Calls whose head names the tool, followed by the arguments as one object.

Examples: ``get_weather[ARGS]{"city": "Paris"}``, ``call:get_weather{city:<escape>Paris<escape>}``.
"""

from __future__ import annotations

import re

from normalizers.base import CallWriter
from normalizers.read.json_calls import JsonCalls
from normalizers.read.region import Region, Search
from normalizers.read.scan import MAX_BLANKS, Wait, match_template, skip_space, templates
from normalizers.spec import FormatSpec, NamedSyntax
from normalizers.values.coerce import SchemaIndex
from normalizers.values.loose_json import Malformed, Notation, ObjectReader

_PREFIX = re.compile(r"\Afunctions[._:/]")
_INDEX = re.compile(r"[:._-]\d+\Z")
_LEGAL_NAME = re.compile(r"[\w.\-/:]+")
_JSON_BODY = re.compile(rf"\[\s{{0,{MAX_BLANKS}}}[{{\"]|\{{")
_BODY_START = re.compile(rf"\[\s{{0,{MAX_BLANKS}}}\Z")


def tool_name(written: str, declared: SchemaIndex) -> str:
    """The tool's name in an id: ``functions.NAME:INDEX``, or what models make of it, like ``functions_NAME_INDEX``.

    As little is cut off as leaves a declared name.
    """
    unindexed = _INDEX.sub("", written)
    for name in (written, _PREFIX.sub("", written), unindexed, _PREFIX.sub("", unindexed)):
        if name in declared:
            return name
    return (unindexed if written.rpartition(":")[0] == unindexed else written).removeprefix("functions.")


class NamedCalls(Region):
    __slots__ = ("_armed", "_head", "_marked", "_notation", "_opens", "_reader", "_tail")

    def __init__(
        self, spec: FormatSpec, writer: CallWriter, schemas: SchemaIndex, *, bare: bool, opener: str = ""
    ) -> None:
        super().__init__(spec, writer, schemas, bare=bare, opener=opener)
        syntax = spec.syntax
        assert isinstance(syntax, NamedSyntax)
        self._head = templates(syntax.head)
        self._marked = tuple(head for head in self._head if head.lead)
        self._tail = syntax.tail
        self._notation = Notation(quotes=syntax.quotes, bare_keys=syntax.bare_keys)
        self._opens = ("{", "(") if syntax.bare_keys else ("{",)
        leads = tuple(head.lead for head in self._head if head.lead)
        self._stops = (*dict.fromkeys((*syntax.tail, *leads, *spec.open)),)
        self._reader: ObjectReader | None = None
        self._armed = True

    def _string_stop(self) -> Search | None:
        return self._reader.stop if self._reader else None

    def _begin(self, text: str, pos: int, final: bool) -> int:
        start = pos
        pos = self._blank_end(text, pos) if self._seen else skip_space(text, pos)
        if pos == len(text):
            self._wait = True
            return start if self._seen else pos
        if (end := self._marker(text, pos, final)) is not None:
            return self._end_region(text, pos, end)
        if self._seen and self._at_drop(text, pos, final):
            self.done = True
            return start
        for literal in (*self._tail, *self._spec.open):
            if text.startswith(literal, pos):
                self._armed = literal not in self._tail
                return pos + len(literal)
            if not final and literal.startswith(text[pos:]):
                raise Wait
        if not self._seen:
            body = _JSON_BODY.match(text, pos)
            if body is None and not final and _BODY_START.match(text, pos):
                raise Wait
            if body:
                self._hand_over(JsonCalls(self._spec, self._calls, self._schemas, bare=self._bare))
                return pos
        return self._begin_call(text, start, pos, final)

    def _begin_call(self, text: str, start: int, pos: int, final: bool) -> int:
        # A head without a literal of its own counts only right after the opener.
        heads = self._head if self._armed else self._marked
        head = match_template(heads, text, pos, final=final)
        if head is None:
            if self._seen:
                self.done = True
                return start
            raise Malformed("syntax")
        groups = head.groupdict()
        name = groups.get("name") or tool_name(groups["id"], self._schemas)
        if name not in self._schemas:
            name = name.removeprefix("functions.")
        if not _LEGAL_NAME.fullmatch(name) or name.isdecimal():
            raise Malformed("call_without_name")
        if self._bare and name not in self._schemas:
            raise Malformed("unknown_tool")
        self._pass_span(text, pos)
        self._arguments.begin(name, groups.get("id"))
        self._state = type(self)._read_arguments
        return head.end()

    def _at_drop(self, text: str, pos: int, final: bool) -> bool:
        """Whether text that is no call goes on with a mark that begins like an opener. Raises `Wait`."""
        for literal in self._spec.drop:
            if literal.startswith((*self._spec.open, *self._spec.begins)):
                if text.startswith(literal, pos):
                    return True
                if not final and literal.startswith(text[pos:]):
                    raise Wait
        return False

    def _read_arguments(self, text: str, pos: int, final: bool) -> int:
        if self._reader is None:
            at = skip_space(text, pos)
            if at == len(text):
                raise Wait
            if not text.startswith(self._opens, at):
                return self._without_arguments(text, pos, at, final)
            self._reader = ObjectReader(self._arguments, self._notation)
            pos = at
        pos = self._reader.step(text, pos, final)
        if self._reader.done:
            if self._reader.repaired:
                self._calls.repaired("lexical")
            self._complete(text, pos)
        else:
            self._wait = True
        return pos

    def _without_arguments(self, text: str, pos: int, at: int, final: bool) -> int:
        follows = (*self._stops, *self._close)
        if not text.startswith(follows, at):
            if not final and any(literal.startswith(text[at:]) for literal in follows):
                raise Wait
            raise Malformed("arguments_not_an_object")
        self._complete(text, pos)
        return pos

    def _close_at_stop(self, text: str, pos: int) -> bool:
        if self._reader is not None:
            return False
        self._complete(text, pos)
        return True

    def _complete(self, text: str, end: int) -> None:
        super()._complete(text, end)
        self._reader = None
        self._armed = False

    # -- failures ------------------------------------------------------------------------------

    def _prepare_skip(self) -> None:
        self._reader = None

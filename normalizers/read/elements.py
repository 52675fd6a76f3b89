"""Calls in which each argument, and each key within an object, has a tag of its own name.

``<invoke name="f"><city>Paris</city><tags><item>a</item></tags></invoke>``, each tag behind the format's mark. The
tool's schema says which type a text has, and whether repeated tags are an array.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from normalizers.base import CallWriter
from normalizers.read.json_calls import JsonCalls
from normalizers.read.region import Region
from normalizers.read.scan import MAX_BLANKS, Wait, match_template, partial_suffix, skip_space, templates
from normalizers.spec import ElementSyntax, FormatSpec
from normalizers.values.coerce import SchemaIndex, read_json, schema_part, schema_types, text_value
from normalizers.values.loose_json import MAX_DEPTH, Malformed

_TAG = re.compile(r"<(/?)([^<>/\n][^<>\n]{0,199})>")
_TAG_START = re.compile(r"<(?:/?[^<>\n]{0,200})?\Z")
_SCALAR = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?|true|false|null", re.ASCII)
_TEXT_KEY = "$text"
"""The key of text that stands beside the keys of an object."""
_STRING = frozenset({"string"})


class _Element:
    __slots__ = ("name", "parts", "schema", "text")

    def __init__(self, name: str, schema: Mapping[str, Any] | None) -> None:
        self.name = name
        self.schema = schema
        """None if nothing declares it."""
        self.text: list[str] = []
        self.parts: list[tuple[str, str]] = []
        """Names and JSON of the elements in it."""


class ElementCalls(Region):
    __slots__ = ("_call", "_end", "_item", "_open", "_raw", "_root", "_sign")

    def __init__(
        self, spec: FormatSpec, writer: CallWriter, schemas: SchemaIndex, *, bare: bool, opener: str = ""
    ) -> None:
        super().__init__(spec, writer, schemas, bare=bare, opener=opener)
        syntax = spec.syntax
        assert isinstance(syntax, ElementSyntax)
        self._sign = syntax.mark
        self._item = syntax.item
        self._call = templates(tuple(syntax.mark + call for call in syntax.call))
        self._end = syntax.mark + syntax.call_end
        self._call_end = self._stops = (self._end,)
        self._open: list[_Element] = []
        self._raw = False
        """The argument is text alone, so tags in it are text, too."""
        self._root: Mapping[str, Any] = {}

    # -- tags ----------------------------------------------------------------------------------

    def _begin(self, text: str, pos: int, final: bool) -> int:
        start = pos
        pos = self._blank_end(text, pos) if self._seen else skip_space(text, pos)
        if pos == len(text):
            self._wait = True
            return start if self._seen else pos
        if (end := self._marker(text, pos, final)) is not None:
            return self._end_region(text, pos, end)
        if text[pos] in "{[" and not self._seen:
            self._hand_over(JsonCalls(self._spec, self._calls, self._schemas, bare=self._bare))
            return pos
        call = match_template(self._call, text, pos, final=final)
        if call is None:
            if self._seen:
                self.done = True
                return start
            raise Malformed("syntax")
        self._pass_span(text, pos)
        self._arguments.begin(call["name"])
        self._root = self._schemas.schema(call["name"])
        self._open = []
        self._state = type(self)._between_arguments
        return call.end()

    def _between_arguments(self, text: str, pos: int, final: bool) -> int:
        pos = skip_space(text, pos)
        if pos == len(text):
            self._wait = True
            return pos
        if text.startswith(self._end, pos):
            self._complete(text, pos + len(self._end))
            return pos + len(self._end)
        if (end := self._marker(text, pos, final)) is not None:
            self._complete(text, pos)
            return self._end_region(text, pos, end)
        tag = self._tag(text, pos, final)
        if tag is None or tag[1]:
            raise Malformed("syntax")
        self._raw = self._schemas.types(self._arguments.name, tag[2]) == _STRING
        self._enter(tag[2])
        self._state = type(self)._read_value
        return tag.end()

    def _tag(self, text: str, pos: int, final: bool) -> re.Match[str] | None:
        """The tag at `pos`, behind the format's mark. Raises `Wait`."""
        if not text.startswith(self._sign, pos):
            if not final and self._sign.startswith(text[pos:]):
                raise Wait
            return None
        at = pos + len(self._sign)
        if tag := _TAG.match(text, at):
            return tag
        if not final and (at == len(text) or _TAG_START.match(text, at)):
            raise Wait
        return None

    # -- values --------------------------------------------------------------------------------

    def _read_value(self, text: str, pos: int, final: bool) -> int:
        """Read text, and the tag behind it."""
        sign, element = self._sign, self._open[-1]
        at = text.find(sign, pos)
        if at < 0:
            end = len(text) - (0 if final else partial_suffix(text, pos, (sign,), len(sign)))
            element.text.append(text[pos:end])
            self._wait = True
            return end
        element.text.append(text[pos:at])
        try:
            return self._read_tag(text, at, final)
        except Wait:
            self._wait = True
            return at
        except Malformed as exc:
            exc.pos = at  # in every split the same
            raise

    def _read_tag(self, text: str, at: int, final: bool) -> int:
        """Read the tag that ends a text, or the format's mark as part of the text."""
        sign, element = self._sign, self._open[-1]
        tag = self._tag(text, at, final)
        if tag is not None:
            if tag[1] and tag[2] == element.name:
                self._leave()
                return tag.end()
            if len(self._open) == 1 and self._ends_call(text, at, final):
                self._leave_unclosed()
                return at
            if tag[1] and not self._raw:
                raise Malformed("syntax")
        if tag is None or self._raw:
            element.text.append(sign)
            return at + len(sign)
        self._enter(tag[2])
        return tag.end()

    def _ends_call(self, text: str, at: int, final: bool) -> bool:
        """Whether the tag at `at` ends the call, and so an argument without its own end: it does if what follows shows
        that it does its work. Raises `Wait`."""
        ends = text.startswith(self._end, at)
        literal = self._end if ends else next((mark for mark in self._close if text.startswith(mark, at)), "")
        if not literal:
            return False
        end = at + len(literal)
        after = min(skip_space(text, end), end + MAX_BLANKS)
        tail = text[after:]
        if not tail or not ends:
            if not tail and not final:
                raise Wait
            return not tail
        follows = (*self._close, *(call.lead for call in self._call))
        if not final and any(mark.startswith(tail) for mark in follows):
            raise Wait
        return tail.startswith(follows)

    def _enter(self, name: str) -> None:
        if len(self._open) >= MAX_DEPTH:
            raise Malformed("nested_too_deep")
        outer = self._open[-1].schema if self._open else self._root
        schema = None
        if outer is not None:
            listed = bool(self._open) and name == self._item and "array" in (schema_types(outer, self._root) or ())
            schema = schema_part(outer, self._root, None if listed else name)
        self._open.append(_Element(name, schema))

    def _leave_unclosed(self) -> None:
        """End an argument whose closing tag is missing. Raises `Malformed` if another tag may stand for it."""
        if self._sign in "".join(self._open[-1].text):
            raise Malformed("syntax")
        self._leave()

    def _leave(self) -> None:
        element = self._open.pop()
        types = None if element.schema is None else schema_types(element.schema, self._root)
        if element.parts:
            value = self._container(element, types)
        else:
            value = _scalar("".join(element.text), types, nested=bool(self._open))
        if self._open:
            self._open[-1].parts.append((element.name, value))
            return
        self._arguments.argument(element.name)
        self._arguments.value(value)
        self._arguments.end_argument()
        self._state = type(self)._between_arguments

    def _container(self, element: _Element, types: frozenset[str] | None) -> str:
        """The JSON of an element that holds others."""
        beside = "".join(element.text)
        all_items = all(name == self._item for name, _ in element.parts)
        listed = "array" in types and (all_items or "object" not in types) if types is not None else all_items
        if listed and not beside.strip():
            return f"[{', '.join(value for _, value in element.parts)}]"
        members: dict[str, list[str]] = {}
        for name, value in element.parts:
            members.setdefault(name, []).append(value)
        written = {
            name: values[0] if len(values) == 1 else f"[{', '.join(values)}]" for name, values in members.items()
        }
        if beside.strip():
            key = _TEXT_KEY
            while key in written:
                key = f"${key}"
            written[key] = json.dumps(beside, ensure_ascii=False)
        return f"{{{', '.join(f'{json.dumps(name, ensure_ascii=False)}: {value}' for name, value in written.items())}}}"

    # -- failures ------------------------------------------------------------------------------

    def _close_at_stop(self, text: str, pos: int) -> bool:
        """The model stopped after an argument, or within one: only closing tags are missing."""
        if self._state is type(self)._read_value and len(self._open) == 1:
            try:
                self._leave_unclosed()
            except Malformed:
                return False
        if self._state is not type(self)._between_arguments:
            return False
        self._complete(text, pos)
        return True


def _scalar(text: str, types: frozenset[str] | None, *, nested: bool) -> str:
    """The JSON of a text. types: that its schema accepts, None if nothing declares it."""
    if types is None:
        if nested and _SCALAR.fullmatch(text.strip()) and (value := read_json(text)) is not None:
            return value
        return json.dumps(text, ensure_ascii=False)
    if "string" not in types and not text.strip():
        for kind, empty in (("array", "[]"), ("object", "{}")):
            if kind in types:
                return empty
    return text_value(text, types)

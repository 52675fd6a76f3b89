"""Recognises the format that the model writes by the first known opener."""

from __future__ import annotations

import re

from normalizers.formats import FORMATS
from normalizers.read.dialects import dialect_of
from normalizers.read.region import Region
from normalizers.read.scan import Wait, skip_space
from normalizers.values.loose_json import Malformed

_FORMATS = {spec.name: spec for spec in FORMATS}
_TOOL_CALL = "<tool_call>"
_FUNCTION = "<function="
_TOOL_CALLS = "<tool_calls>"
_DEEPSEEK = "<｜tool▁calls▁begin｜>"
_DEEPSEEK_CALL = "<｜tool▁call▁begin｜>"
_IN_JSON = re.compile(r"\s*(?:<｜tool▁call▁begin｜>\s*)?\{")
_FENCED = re.compile(r"\s*(?:<｜tool▁call▁begin｜>)?function<｜tool▁sep｜>")
_LOOKAHEAD = 64


class Auto(Region):
    """Reads no call itself. It hands over to the dialect of the format with the opener found here."""

    __slots__ = ()

    def _begin(self, text: str, pos: int, final: bool) -> int:
        openers = [mark for mark in self._spec.begins if text.startswith(mark, pos)]
        if not openers:
            raise Malformed("syntax")
        opener = max(openers, key=len)
        chosen = _FORMATS[self._sniff(text, pos + len(opener), opener, final)]
        if opener in chosen.open:
            pos += len(opener)
        self._hand_over(dialect_of(chosen)(chosen, self._calls, self._schemas, bare=False))
        return pos

    def _sniff(self, text: str, pos: int, opener: str, final: bool) -> str:
        """The format's name; for a shared opener, the text after it decides. Raises `Wait`."""
        if opener in (_DEEPSEEK, _DEEPSEEK_CALL):
            if not final and len(text) - pos < _LOOKAHEAD and "{" not in text[pos:]:
                raise Wait
            if _IN_JSON.match(text, pos):
                return "deepseek_json"
            return "deepseek_v3" if _FENCED.match(text, pos) else "deepseek_v31"
        if opener == _TOOL_CALL:
            at = skip_space(text, pos)
            tail = text[at : at + len(_FUNCTION)]
            if not final and tail != _FUNCTION and _FUNCTION.startswith(tail):
                raise Wait
            if tail[:1] in ("{", "[", "`"):
                return "hermes"
            return "qwen3_coder" if tail == _FUNCTION else "glm45"
        if opener == _TOOL_CALLS:
            at = skip_space(text, pos)
            if at == len(text) and not final:
                raise Wait
            return "jamba" if text[at : at + 1] in ("{", "[", "`") else "hy_v3"
        if opener == _FUNCTION:
            return "qwen3_coder"  # reads an object in the place of parameters, too
        return next(spec.name for spec in FORMATS if opener in spec.open or opener in spec.begins)

    def _skip(self, text: str, pos: int, final: bool) -> int:
        self._refuse(text, pos)
        self.done = True
        return pos

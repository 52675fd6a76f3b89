"""Calls without marks: an answer, or the fence at its end, that is nothing but calls of declared tools.

Models that were taught marks often omit them: they write a call's JSON alone, in a Markdown fence, or in tags of their
own. A quoted call must never run, so the text counts only as a whole, and only if every call names a declared tool
and its arguments fit the tool's schema. The text is held back while it can still become such calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from normalizers.base import CallWriter
from normalizers.read import BEGINNING, may_be_told
from normalizers.read.json_calls import JsonCalls
from normalizers.read.region import Region
from normalizers.read.scan import MAX_BLANKS, Literals, Wait, skip_space
from normalizers.read.trial import Attempt
from normalizers.spec import FormatSpec
from normalizers.values.coerce import SchemaIndex

FENCES = ("```", "~~~")
PYTHON_FORMS = frozenset({"call", "list"})
"""The forms of `FormatSpec.bare` that are Python."""
_INFO_WORDS = r"[^`~\n{\[<]{0,128}"
_INFO_BRACES = r"(?:\{(?!\s*[\"'])[^`\n{}:]{0,64}\}|\[(?!\s*[\[{\"'])[^`\n\[\]{}]{0,64}\])"
_INFO = re.compile(rf"(`{{3,}}+|~{{3,}}+)(?:{_INFO_WORDS}{_INFO_BRACES}{_INFO_WORDS}\n|{_INFO_WORDS}\n?)")
_INFO_START = re.compile(
    rf"(?:`{{3,}}+|~{{3,}}+){_INFO_WORDS}"
    r"(?:\{(?:\s*|(?!\s*[\"'])[^`\n{}:]{0,64})|\[(?:\s*|(?!\s*[\[{\"'])[^`\n\[\]{}]{0,64})"
    rf"|{_INFO_BRACES}{_INFO_WORDS})\Z"
)
"""The beginning of an info string with braces, such as ``{.json}``, which might also be that of a call's object."""
_WRAPPERS = ("tool_call", "tool_calls", "function_call", "function_calls", "functions", "function", "tools", "tool")
_WRAPPER = re.compile(rf"<({'|'.join(sorted(_WRAPPERS, key=len, reverse=True))})>")
_LONGEST_WRAPPER = max(map(len, _WRAPPERS)) + 2
_JSON_LIST = re.compile(rf"\[\s{{0,{MAX_BLANKS}}}\{{")
_OTHER_LIST = re.compile(rf"\[\s{{0,{MAX_BLANKS}}}[\"\d\-\[\]]")
_LIST_START = re.compile(rf"\[\s{{0,{MAX_BLANKS}}}\Z")
_MAX_BEGINNING = 1024
_LONGEST_FENCE = 64
"""So many signs are waited for."""
_PYTHON = re.compile(rf"(\[\s{{0,{MAX_BLANKS}}})?(\w[\w.\-:/]{{0,127}})?(\s{{0,64}})(\()?")


class Unmarked(Attempt):
    """Reads text from its first character on that may be calls alone.

    literals: the format's marks, without fences. follows_text: the text stands behind other content, so it counts only
    at the answer's end. python: the reader of Python calls, if these may come without marks, too. writer: that of the
    answer, if a grammar makes it certain that a `BEGINNING` with the name of a declared tool begins calls and nothing
    else; these are passed on as they come.
    """

    __slots__ = ("_close", "_closed", "_follows_text", "_literals", "_new_reader", "_wrapped", "_writer", "passes_on")

    def __init__(
        self,
        spec: FormatSpec,
        schemas: SchemaIndex,
        literals: Literals,
        *,
        follows_text: bool,
        python: Callable[..., Region] | None = None,
        writer: CallWriter | None = None,
    ) -> None:
        super().__init__(spec, schemas)
        self._writer = writer
        self.passes_on = False
        """The calls go to the answer as they come."""
        self._literals = literals
        self._follows_text = follows_text
        self._new_reader = python
        self._close: list[str] = []
        self._closed = self._wrapped = False

    def step(self, text: str, pos: int, reason: str | None) -> int:
        if self._writer is not None and not self.passes_on:
            self._find_name("".join(self._raw) + text[pos:], self._writer)
        return super().step(text, pos, reason)

    def _find_name(self, text: str, writer: CallWriter) -> None:
        beginning = BEGINNING.match(text)
        if beginning is None:
            if len(text) > _MAX_BEGINNING:
                self._writer = None
            return
        names = [name for name in self._schemas.names if may_be_told(name, self._literals.all)]
        names = [json.dumps(name, ensure_ascii=False)[1:] for name in names]
        written = text[beginning.end() :]
        if written.startswith(tuple(names)):
            self.passes_on = True
            self.trial.pass_on(writer)
        elif not any(name.startswith(written) for name in names):
            self._writer = None

    # -- between calls -------------------------------------------------------------------------

    def _between(self, text: str, pos: int, reason: str | None) -> int:
        """Read white space, a separator, or the beginning or end of something around calls. Raises `Wait`."""
        at = skip_space(text, pos)
        self._closed = False
        if at == len(text):
            self._wait = True
            if reason is not None:
                self.verdict = "calls" if self._counted else "text"
                self._closed = True
            return at
        final = reason is not None
        if self._close and (end := self._end_of(self._close[-1], text, at, final)):
            self._closed = True
            self._close.pop()
            return end
        # A mark of the format, too, may be a tag around a call within a fence.
        if not (self._close and _WRAPPER.match(text, at)) and self._literals.begin(text, at, final=final):
            # A mark of the format: what it begins or ends is read as usual.
            self.verdict = "calls" if self._counted else "text"
            return pos
        char = text[at]
        if char in ",;" and self._counted:
            return at + 1
        if char in "`~":
            return self._open_fence(text, at, final)
        if char == "<":
            return self._open_wrapper(text, at, final)
        if char == "{":
            return self._read(JsonCalls(self._spec, self.trial, self._schemas, bare=True), at)
        if char == "[" and not final and _LIST_START.match(text, at):
            raise Wait
        if _JSON_LIST.match(text, at):
            return self._read(JsonCalls(self._spec, self.trial, self._schemas, bare=True), at)
        if self._new_reader is not None and not self._close and self._begins_python(text, at, final):
            return self._read(self._new_reader(self._spec, self.trial, self._schemas, bare=True), at)
        other_json = _OTHER_LIST.match(text, at) is not None
        self._refuse(json=other_json, prose=not other_json)
        return pos

    def _read(self, reader: Region, pos: int) -> int:
        self._reader = reader
        return pos

    def _open_fence(self, text: str, at: int, final: bool) -> int:
        found = _INFO.match(text, at)
        if found is None or any(closing.startswith(FENCES) for closing in self._close):
            if not final and any(fence.startswith(text[at:]) for fence in FENCES):
                raise Wait
            self._refuse()
            return at
        if not final and (found.end() == len(text) or _INFO_START.match(text, at)):
            raise Wait
        self._close.append(found[1])
        self._wrapped = True
        return found.end()

    def _end_of(self, closing: str, text: str, at: int, final: bool) -> int:
        """The end of what closes a fence or tag, 0 if it doesn't stand there. Raises `Wait`."""
        if not Literals((closing,)).begin(text, at, final=final):
            return 0
        if closing[0] == "<":
            return at + len(closing)
        # A fence ends with as many signs, or more.
        run = text[at : at + max(_LONGEST_FENCE, len(closing))]
        end = at + len(run) - len(run.lstrip(closing[0]))
        if end == len(text) and len(run) < _LONGEST_FENCE and not final:
            raise Wait
        return end

    def _open_wrapper(self, text: str, at: int, final: bool) -> int:
        found = _WRAPPER.match(text, at)
        if found is None:
            if not final and any(f"<{name}>".startswith(text[at:]) for name in _WRAPPERS):
                raise Wait
            self._refuse()
            return at
        self._close.append(f"</{found[1]}>")
        self._wrapped = True
        return found.end()

    def _begins_python(self, text: str, at: int, final: bool) -> bool:
        """Whether a call of a declared tool, or a list of them, begins in Python. Raises `Wait`."""
        found = _PYTHON.match(text, at)
        if found is None or ("list" if found[1] else "call") not in (self._spec.bare or PYTHON_FORMS):
            return False
        name, names = found[2] or "", self._schemas.names
        if found[4]:
            return name in names
        may_go_on = name in names if found[3] and name else any(known.startswith(name) for known in names)
        if may_go_on and not final and found.end() == len(text):
            raise Wait
        return False

    # -- verdicts ------------------------------------------------------------------------------

    def _settled(self) -> bool:
        return self._closed

    def _fits(self) -> bool:
        return self.passes_on or self.trial.fit(self._counted)

    def _end_item(self, end: int) -> None:
        if self.passes_on and self.trial.was_cut:
            self.verdict, self._complete = "calls", end
        else:
            super()._end_item(end)

    def _refuse_item(self) -> None:
        trial = self.trial
        self._refuse(json=trial.failed and not trial.undeclared and len(trial.calls) == self._counted)

    def _refuse(self, *, json: bool = False, prose: bool = False) -> None:
        """Something isn't a call. json: it is other JSON, such as a result that the model invented."""
        counts = (json and self._spec.unmarked == "last") or (prose and self._spec.inline and not self._wrapped)
        counts = self.passes_on or (counts and not self._follows_text)
        counts = counts and self._counted > 0
        self.verdict = "calls" if counts else "text"

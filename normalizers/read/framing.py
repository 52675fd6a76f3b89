"""The outermost reader of an answer: content, reasoning and regions of calls.

It finds literals across any split, and holds back only text that may still become one. The dialect
reads a region and decides where it ends, so an end marker within a string is part of the string.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from normalizers.base import CallWriter, Normalizer
from normalizers.events import Event, TextDelta
from normalizers.read import CALL_KEYS
from normalizers.read.scan import Wait, match_template, skip_space, templates
from normalizers.spec import FormatSpec
from normalizers.values.coerce import SchemaIndex
from normalizers.values.loose_json import partial_close

_NAME = re.compile(r"\w[\w.\-:/]*")
_BARE_FORMS = (
    (
        "list",
        re.compile(r"\[\s{0,64}(\w[\w.\-:/]*)\s{0,64}\("),
        re.compile(r"\[\s{0,64}(?:(\w[\w.\-:/]*)\s{0,64})?\Z"),
    ),
    (
        "object",
        re.compile(r"(?:\[\s{0,64})?\{\s{0,64}[\"'“”](?:" + "|".join(sorted(CALL_KEYS)) + r")[\"'”]\s{0,64}:"),
        re.compile(r"(?:\[\s{0,64}|(?:\[\s{0,64})?\{\s{0,64}(?:[\"'“”](\w{0,20})(?:[\"'”]\s{0,64})?)?)\Z"),
    ),
)
"""The white space is bounded, so that text which never becomes a call is held back for a bounded while."""
_SPACED_CALL = re.compile(r"[ \t]{1,64}\(\s{0,64}[\w.\-]+\s{0,64}=")
_SPACED_CALL_START = re.compile(r"[ \t]{1,64}(?:\(\s{0,64}(?:[\w.\-]{1,64}\s{0,64})?)?\Z")
_TOOL_LINE = re.compile(r"[Tt]ool:[ \t]*")
_FENCE = "```"
_LONG = 64
_NOTHING = r"(?!)"


Search = Callable[..., "re.Match[str] | None"]


class Dialect(Protocol):
    """Reads one region of calls."""

    done: bool
    """The region has ended. Text that `step` left unread is content again."""
    successor: Dialect | None
    """Another dialect that reads on in place of this one."""

    @property
    def source(self) -> str:
        """All the text of a region that is done, if the format may repeat it (`FormatSpec.echo`)."""
        ...

    quoted: bool
    """What was read last is content as it is, and so is the white space after it."""

    def __init__(
        self, spec: FormatSpec, writer: CallWriter, schemas: SchemaIndex, *, bare: bool, opener: str
    ) -> None: ...

    def held(self) -> tuple[str, int] | None:
        """The call that is held back: its name, and how many characters of it came."""
        ...

    stop: Search | None
    """In an open string whose text needs no change, the search for any character that isn't plain text."""

    def more(self, text: str) -> list[Event] | None:
        """The event for more of that string, none if it is held back. None: `step` must read the text."""
        ...

    def step(self, text: str, pos: int, reason: str | None) -> int:
        """Read ``text[pos:]``; returns the position up to which it is consumed.

        The caller passes the rest, a bounded look-ahead, again with more text after it. With a
        `reason` no more text follows: all is consumed, or the region is done.
        """
        ...


Step = Callable[[str, int, str | None], int]


class Framing(Normalizer):
    __slots__ = (
        "_at_line_start",
        "_blanks",
        "_brackets",
        "_dialect",
        "_dialect_of",
        "_echo",
        "_fenced",
        "_gap",
        "_guarded",
        "_heads",
        "_held",
        "_lines",
        "_literals",
        "_longest",
        "_names",
        "_plain",
        "_read",
        "_scan",
        "_schemas",
        "_space",
        "_spec",
        "_strays",
        "_switched",
        "_think_close",
        "_ticked",
        "_trigger",
        "_writer",
    )

    def __init__(
        self,
        spec: FormatSpec,
        dialect_of: Callable[[FormatSpec], type[Dialect]],
        tools: Sequence[Mapping[str, Any]] | SchemaIndex,
        *,
        ids: Callable[[], str],
        reasoning_open: bool,
        allow_calls: bool,
        parallel: bool,
        guarded: bool,
    ) -> None:
        super().__init__()
        self._spec = spec
        self._dialect_of = dialect_of
        self._schemas = tools if isinstance(tools, SchemaIndex) else SchemaIndex(tools)
        self._names = self._schemas.names if spec.bare else frozenset[str]()
        self._writer = CallWriter(self, spec, self._schemas, ids, allow=allow_calls, parallel=parallel, guarded=guarded)
        self._guarded = guarded
        calls = bool(self._schemas.names) or spec.unknown_tools == "forward"
        table = _scanner(spec, calls, bool(self._names))
        self._literals, self._longest, self._scan, self._trigger, self._heads, self._strays = table
        self._space = ""
        self._blanks = 0
        self._held = ""
        self._gap = "start"
        self._lines = bool(self._names) and ("call" in spec.bare or "tool_line" in spec.bare)
        self._at_line_start = self._lines
        self._fenced = False
        self._ticked = False
        self._brackets = 0
        self._echo = ""
        self._dialect: Dialect | None = None
        self._think_close = spec.think[0][1] if spec.think else ""
        self._plain = False
        self._switched = False
        self._read: Step = self._read_first if spec.first else self._read_text
        if reasoning_open and spec.think:
            self._read = self._read_reasoning

    @property
    def held(self) -> tuple[str, int] | None:
        return None if self._dialect is None or self._writer.guarded else self._dialect.held()

    def passes(self, text: str) -> bool:
        return self._plain and self._trigger(text) is None

    def feed(self, text: str) -> list[Event]:
        dialect = self._dialect
        if dialect is None:
            if self._plain and self._trigger(text) is None:
                return [TextDelta(text)] if text else []
            return self._run(text, None)
        # The fast path within a region: no other reader can take over.
        if self._held:
            text = self._held + text
            self._held = ""
        elif dialect.stop is not None and dialect.stop(text) is None and (more := dialect.more(text)) is not None:
            return more
        out: list[Event] = []
        self._writer.out = out
        pos = dialect.step(text, 0, None)
        if dialect.done or dialect.successor is not None:
            self._after_step(dialect)
            return self._run_on(out, text, pos, None)
        if pos < len(text):
            self._held = text[pos:]
        return out

    def finish(self, reason: str | None) -> list[Event]:
        if self._plain:
            return []
        out = self._run("", reason or "stop")
        if dropped := "".join(self._writer.dropped).strip():
            self._writer.warn("text_after_call", dropped)
        return out

    def _run(self, text: str, reason: str | None) -> list[Event]:
        out: list[Event] = []
        self._writer.out = out
        if self._held:
            text = self._held + text
        self._switched = True
        return self._run_on(out, text, 0, reason)

    def _run_on(self, out: list[Event], text: str, pos: int, reason: str | None) -> list[Event]:
        while self._switched:
            self._switched = False
            pos = self._read(text, pos, reason)
        self._held = text[pos:]
        if self._dialect is None:
            self._plain = (
                not (self._held or self._gap or self._at_line_start or self._ticked)
                and self._read == self._read_text
                and not self._writer.drops
            )
        return out

    def _switch(self, read: Step) -> None:
        """Let another reader go on from here."""
        self._read = read
        self._switched = True
        self._plain = False

    def _read_first(self, text: str, pos: int, reason: str | None) -> int:
        """Look whether the answer goes on with a region that the prompt has opened."""
        try:
            match = match_template(templates(self._spec.first), text, pos, final=reason is not None)
        except Wait:
            return pos
        self._switch(self._read_text)
        if match is None:
            return pos
        if "name" not in match.re.groupindex:
            self._gap = ""
            return match.end()
        if self._spec.channels or match["name"] in self._schemas:
            return self._enter(bare=False, pos=pos)
        return pos

    # -- content -------------------------------------------------------------------------------

    def _read_text(self, text: str, pos: int, reason: str | None) -> int:
        size = len(text)
        start = begin = pos
        if self._gap:
            # White space next to a call or to reasoning is layout of the markup, not content.
            # White space that is held back isn't read again with each piece.
            pos = skip_space(text, pos + self._blanks)
            if pos == size:
                self._blanks = size - start
                return self._end_in_gap(text, start, reason)
            self._blanks = 0
            if self._gap == "reasoning":
                start = pos
            if self._echo and (end := self._echoed(text, pos, reason)) != pos:
                return start if end < 0 else end
        while True:
            if self._at_line_start and not self._fenced:
                indent = _INDENT.match(text, pos)
                name_at = indent.end() if indent else pos
                if verdict := self._bare_name(text, name_at, reason):
                    return self._emit(text, start, pos) if verdict == "wait" else self._bare_call(text, start, name_at)
                if name_at < size:
                    self._at_line_start = False
            # In a long text, searching for each head is far faster than scanning.
            long = size - pos > _LONG
            found = self._scan(text, pos) if not long or self._has_head(text, pos) else None
            if found is None:
                return self._emit(text, start, size if reason else size - self._partial(text, pos))
            stop = self._at_literal(text, start, begin, found, reason)
            if stop is not None:
                return stop
            pos = found.end()

    def _end_in_gap(self, text: str, start: int, reason: str | None) -> int:
        if reason is None:
            return start
        if self._gap == "start":
            self._writer.text(text[start:])
        return len(text)

    def _at_literal(self, text: str, start: int, begin: int, found: re.Match[str], reason: str | None) -> int | None:
        """Where reading stops at the literal; None if the literal is content, too."""
        literal, at = found.group(), found.start()
        if reason is None and self._may_grow(text, at):
            return self._emit(text, start, at)
        if literal == _FENCE:
            self._fenced = not self._fenced
        elif literal == "\n":
            self._at_line_start = True
        elif literal in ("[", "{"):
            return self._at_bracket(text, start, begin, at, reason)
        elif literal in ("]", "}"):
            self._brackets -= self._brackets > 0 and not self._fenced
        elif literal in self._strays:
            self._emit(text, start, at)
            if literal in self._spec.content_drop:
                self._gap = "reasoning"
            else:
                self._writer.warn("stray_marker", literal)
            self._switch(self._read_text)  # looks again at the white space after it
            return found.end()
        else:
            self._emit_before_call(text, start, at)
            return self._on_literal(literal, found.end())
        return None

    def _at_bracket(self, text: str, start: int, begin: int, at: int, reason: str | None) -> int | None:
        ticked = text[at - 1] == "`" if at > begin else self._ticked
        if not (self._fenced or ticked or self._brackets):
            verdict = self._bare_bracket(text, at, reason)
            if verdict:
                return self._emit(text, start, at) if verdict == "wait" else self._bare_call(text, start, at)
        # Text within the brackets of content, of a JSON answer say, is never a call.
        self._brackets += not self._fenced
        return None

    def _bare_call(self, text: str, start: int, at: int) -> int:
        self._emit_before_call(text, start, at)
        return self._enter(bare=True, pos=at)

    def _has_head(self, text: str, pos: int) -> bool:
        return any(text.find(head, pos) >= 0 for head in self._heads)

    def _emit(self, text: str, start: int, end: int) -> int:
        """Emit the content up to `end`; returns where the text held back begins."""
        if end > start and not (self._gap and text[start:end].isspace()):
            self._gap = ""
            self._echo = ""
            self._ticked = text[end - 1] == "`"
            self._writer.text(text[start:end])
            return end
        return start

    def _emit_before_call(self, text: str, start: int, end: int) -> None:
        self._space = text[self._emit(text, start, end) : end]
        self._gap = "call"

    def _on_literal(self, literal: str, pos: int) -> int:
        spec = self._spec
        if literal in spec.open:
            self._space += literal
            return self._enter(bare=False, pos=pos)
        if literal in spec.begins:
            return self._enter(bare=False, pos=pos - len(literal))
        self._think_close = next(closing for opening, closing in spec.think if opening == literal)
        self._gap = "reasoning"
        self._switch(self._read_reasoning)
        return pos

    def _may_grow(self, text: str, at: int) -> bool:
        """Whether the text may go on to a longer literal that begins like this one."""
        tail = text[at:]
        if len(tail) >= self._longest:
            return False
        return any(len(longer) > len(tail) and longer.startswith(tail) for longer in self._literals)

    def _partial(self, text: str, pos: int) -> int:
        """Length of the longest end of the text that begins a literal."""
        size = len(text)
        head = self._trigger(text, max(pos, size - self._longest + 1))
        while head is not None:
            tail = text[head.start() :]
            if any(literal.startswith(tail) for literal in self._literals):
                return len(tail)
            head = self._trigger(text, head.end())
        return 0

    def _bare_name(self, text: str, at: int, reason: str | None) -> str:
        """Whether a call begins at the start of a line: "call", "wait" for more text, or ""."""
        size = len(text)
        end = at
        if "tool_line" in self._spec.bare:
            tool = _TOOL_LINE.match(text, at)
            if tool is None:
                part = "tool:".startswith(text[at:].lower())
                return "wait" if part and reason is None else ""
            end = tool.end()
        word = _NAME.match(text, end)
        if word is None:
            return "wait" if end == size and reason is None else ""
        name = word.group()
        if word.end() == size and reason is None:
            return "wait" if any(n.startswith(name) for n in self._names) else ""
        if name not in self._names:
            return ""
        if "tool_line" in self._spec.bare or text[word.end() : word.end() + 1] == "(":
            return "call"
        # With a blank before the parenthesis it may be prose, unless a keyword follows.
        if _SPACED_CALL.match(text, word.end()):
            return "call"
        return "wait" if reason is None and _SPACED_CALL_START.match(text, word.end()) else ""

    def _bare_bracket(self, text: str, at: int, reason: str | None) -> str:
        """Whether a call begins with the bracket: "call", "wait" for more text, or ""."""
        for form, whole, part in _BARE_FORMS:
            if form not in self._spec.bare:
                continue
            if match := whole.match(text, at):
                if form == "object" or match[1] in self._names:
                    return "call"
            elif reason is None and (match := part.match(text, at)):
                word = match[1] or ""
                words = self._names if form == "list" else CALL_KEYS
                if not word or any(known.startswith(word) for known in words):
                    return "wait"
        return ""

    def _echoed(self, text: str, pos: int, reason: str | None) -> int:
        """Where the echo ends, -1 to wait for more text, or `pos`.

        LFM2 may repeat a block's body and its end marker. The repetition isn't a second call.
        """
        if text.startswith(self._echo, pos):
            end = pos + len(self._echo)
            self._writer.warn("echo_dropped", self._echo)
            return end
        if reason is None and self._echo.startswith(text[pos:]):
            return -1
        self._echo = ""
        return pos

    # -- reasoning -----------------------------------------------------------------------------

    def _read_reasoning(self, text: str, pos: int, reason: str | None) -> int:
        if self._gap:
            pos = skip_space(text, pos)
            if pos == len(text):
                return pos
            self._gap = ""
        close = self._think_close
        at = text.find(close, pos)
        if at >= 0:
            self._writer.reasoning(text[pos:at].rstrip())
            self._gap = "reasoning"
            self._switch(self._read_first if self._spec.first else self._read_text)
            return at + len(close)
        end = len(text)
        if reason is None:
            end -= partial_close(text, pos, close)
        end = pos + len(text[pos:end].rstrip())
        self._writer.reasoning(text[pos:end])
        return end if reason is None else len(text)

    # -- calls ---------------------------------------------------------------------------------

    def _enter(self, *, bare: bool, pos: int) -> int:
        # No grammar sees a call without a mark begin.
        self._writer.guarded = self._guarded and not bare
        dialect = self._dialect_of(self._spec)
        self._dialect = dialect(self._spec, self._writer, self._schemas, bare=bare, opener=self._space)
        self._switch(self._read_calls)
        return pos

    def _read_calls(self, text: str, pos: int, reason: str | None) -> int:
        dialect = self._dialect
        assert dialect is not None
        end = dialect.step(text, pos, reason)
        self._after_step(dialect)
        return end

    def _after_step(self, dialect: Dialect) -> None:
        if dialect.successor is not None:
            self._dialect = dialect.successor
            self._switched = True
        elif dialect.done:
            self._dialect = None
            self._switch(self._read_text)
            self._gap = "" if dialect.quoted else "call"
            self._at_line_start = self._lines
            self._ticked = False
            self._echo = dialect.source.lstrip()


_INDENT = re.compile(r"[ \t]*")
_Table = tuple[frozenset[str], int, Search, Search, tuple[str, ...], frozenset[str]]
_BARE_MARKS = {"call": "\n", "tool_line": "\n", "list": "[]{}", "object": "[]{}"}
_TABLES: dict[tuple[FormatSpec, bool, bool], _Table] = {}


def _scanner(spec: FormatSpec, calls: bool, bare: bool) -> _Table:
    """The literals, the length of the longest, a search for them, one for their first characters, these characters,
    and the literals that begin nothing.

    calls: whether a call may come at all. If not, its marks are content.
    """
    key = (spec, calls, bare)
    if (found := _TABLES.get(key)) is None:
        literals = {*spec.open, *spec.begins, *spec.close, *spec.drop, *(pair[0] for pair in spec.think)}
        if not calls:
            literals -= spec.call_marks
        extra = {mark for form in spec.bare for mark in _BARE_MARKS[form]} if bare else set()
        if bare:
            literals.add(_FENCE)
        ordered = sorted(literals | extra, key=len, reverse=True)
        scan = re.compile("|".join(map(re.escape, ordered)) or _NOTHING).search
        heads = tuple(sorted({literal[0] for literal in ordered}))
        trigger = re.compile(f"[{''.join(map(re.escape, heads))}]" if heads else _NOTHING).search
        strays = frozenset((*spec.close, *spec.drop)) - {*spec.open, *spec.begins}
        longest = max(map(len, literals), default=1)
        found = _TABLES[key] = (frozenset(literals), longest, scan, trigger, heads, strays)
    return found

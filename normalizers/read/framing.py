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
from normalizers.read.dialects import DIALECTS, load
from normalizers.read.quotes import LEFT_OUT, LOOK_BACK, RUN, Quotes, whole_runs
from normalizers.read.reasoning_calls import ReasoningCalls
from normalizers.read.scan import (
    MAX_BLANKS,
    Found,
    Literals,
    Wait,
    is_token,
    match_template,
    partial_suffix,
    skip_space,
    templates,
)
from normalizers.read.trial import Attempt
from normalizers.read.unmarked import FENCES, PYTHON_FORMS, Unmarked
from normalizers.spec import FormatSpec
from normalizers.values.coerce import SchemaIndex

_NAME = re.compile(r"\w[\w.\-:/]*")
_TOOL_LINE = re.compile(r"[Tt]ool:[ \t]*")
_FIRST_NAME = re.compile(r"[\w.\-]+\Z")
_LINE_START = re.compile(r"\n[ \t]{0,62}\Z")
MAX_REREAD = 4096
"""Characters. A text that is read for calls and is none is read again from its next beginning of calls; once that comes
to so many, no more calls are looked for before its end. Else 2,000 fences in a row were read 2,000 times."""
_UNMARKED_HEADS = "{[`~<"
"""The characters that begin calls without marks as JSON."""


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

    announced: bool
    """The region's opener was dropped, though no call followed."""

    closed: bool
    """The region ended with its end marker."""

    in_sentence: bool
    """Set by the caller: the opener may be part of a sentence, so it is content if no call follows."""

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


Step = Callable[["Framing", str, int, str | None], int]
"""A method of the class: one of the object would keep it alive until Python's collector comes by."""


class Framing(Normalizer):
    __slots__ = (
        "_at_line_start",
        "_attempt",
        "_blanks",
        "_call_openers",
        "_dialect",
        "_dialect_of",
        "_echo",
        "_fed",
        "_found",
        "_gap",
        "_guarded",
        "_heads",
        "_held",
        "_last",
        "_lines",
        "_literals",
        "_longest",
        "_marks",
        "_names",
        "_noted",
        "_open_in_text",
        "_owes_close",
        "_plain",
        "_python_heads",
        "_quotes",
        "_read",
        "_refused",
        "_replay",
        "_reread",
        "_scan",
        "_schemas",
        "_space",
        "_spec",
        "_strays",
        "_switched",
        "_think_close",
        "_thinks",
        "_tried_to",
        "_trigger",
        "_unmarked_guarded",
        "_unmarked_heads",
        "_writer",
    )

    def __init__(
        self,
        spec: FormatSpec,
        dialect_of: Callable[[FormatSpec], Callable[..., Any]],
        tools: Sequence[Mapping[str, Any]] | SchemaIndex,
        *,
        ids: Callable[[], str],
        reasoning_open: bool,
        allow_calls: bool,
        parallel: bool,
        guarded: bool,
        unmarked_guarded: bool,
    ) -> None:
        super().__init__()
        self._spec = spec
        self._dialect_of = dialect_of
        self._schemas = tools if isinstance(tools, SchemaIndex) else SchemaIndex(tools)
        names = self._schemas.names
        self._names = names if spec.bare and spec.unmarked != "alone" else frozenset[str]()
        self._writer = CallWriter(
            self.told, spec, self._schemas, ids, allow=allow_calls, parallel=parallel, guarded=guarded
        )
        self._guarded, self._unmarked_guarded = guarded, unmarked_guarded
        table = _scanner(spec, bool(names) or spec.unknown_tools == "forward", bool(self._names))
        self._literals, self._marks, self._longest, self._scan, self._trigger, self._heads, self._strays = table
        self._found = Found()
        self._space = ""
        self._blanks = 0
        self._held = ""
        self._gap = "start"
        self._lines = bool(self._names)
        self._at_line_start = self._lines
        self._quotes = Quotes()
        self._noted = 0
        """Characters of the answer up to the last that `_quotes` has read in reasoning."""
        self._open_in_text = self._owes_close = False
        self._last = "\n"
        """The last characters of the content or the reasoning, from its beginning on."""
        self._unmarked_heads = _unmarked_heads(spec, names) if names and allow_calls else ""
        self._python_heads = (
            self._unmarked_heads[len(_UNMARKED_HEADS) :] + "[" if spec.bare and self._unmarked_heads else ""
        )
        self._attempt: Attempt | None = None
        self._refused = False
        self._fed = self._tried_to = self._reread = 0
        """Characters of the answer so far; up to where it was read for calls in vain; and of those, read again."""
        self._replay = ""
        self._echo = ""
        self._dialect: Dialect | None = None
        # Of the reasoning that a prompt has opened, the first of the format's ends is the end.
        self._think_close = tuple(dict.fromkeys(closing for _, closing in spec.think))
        may_call = names and allow_calls and spec.calls_in_reasoning == "last"
        self._call_openers = spec.openers if may_call else ()
        self._thinks = tuple(opening for opening, _ in spec.think)
        self._plain = False
        self._switched = False
        self._read: Step = Framing._read_first if spec.first else Framing._read_text
        if reasoning_open and spec.think:
            self._read = Framing._read_reasoning

    @property
    def held(self) -> tuple[str, int] | None:
        if self._attempt is not None:
            return None if self._passes_on else self._attempt.held()
        return None if self._dialect is None or self._writer.guarded else self._dialect.held()

    @property
    def pending(self) -> int:
        if self._attempt is not None:
            return self._attempt.size
        held = None if self._dialect is None else self._dialect.held()
        return 0 if held is None else held[1]

    def passes(self, text: str) -> bool:
        if not self._plain or self._trigger(text) is not None:
            return False
        self._fed += len(text)
        if self._quotes.in_line:
            self._quotes.read(text, 0, len(text))
        self._last = (self._last + text)[-LOOK_BACK:]
        return True

    def feed(self, text: str) -> list[Event]:
        dialect = self._dialect
        if dialect is None:
            if self.passes(text):
                return [TextDelta(text)] if text else []
            return self._run(text, None)
        # The fast path within a region: no other reader can take over.
        self._fed += len(text)
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
        self._fed += len(text)
        if self._held:
            text = self._held + text
        self._switched = True
        return self._run_on(out, text, 0, reason)

    def _run_on(self, out: list[Event], text: str, pos: int, reason: str | None) -> list[Event]:
        while self._switched:
            self._switched = False
            pos = self._read(self, text, pos, reason)
            if self._replay:
                back = pos - len(self._replay)
                if back >= 0 and text.startswith(self._replay, back):
                    pos = back  # a long answer isn't copied for each
                else:
                    text, pos = self._replay + text[pos:], 0
                self._replay = ""
        self._held = text[pos:]
        if self._dialect is None:
            self._plain = (
                not (self._held or self._gap or self._at_line_start)
                and self._read is Framing._read_text
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
            if self._may_begin(text[pos:]):
                return pos
            match = None
        self._switch(Framing._read_text)
        if match is None:
            return pos
        if "name" not in match.re.groupindex:
            self._gap = ""
            return match.end()
        # A literal before the name is a mark. Without one, only a declared name tells the region from text.
        if text[pos : match.start("name")].strip() or match["name"] in self._schemas:
            return self._enter(bare=False, pos=pos)
        return pos

    def _may_begin(self, text: str) -> bool:
        """Whether the answer's beginning may still become that of a region that the prompt has opened."""
        if self._spec.unknown_tools == "forward":
            return True
        text = text.lstrip()
        for template in self._spec.first:
            lead, named, _ = template.lstrip().partition("{name}")
            if lead.startswith(text):
                return True
            if named and text.startswith(lead):
                word = _FIRST_NAME.match(text, len(lead))
                if lead or word is None or any(name.startswith(word[0]) for name in self._schemas.names):
                    return True
        return False

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
            if (stop := self._after_gap(text, start, pos, reason)) is not None:
                return stop
        while True:
            looks = self._at_line_start and not self._quotes.fence
            if looks and (stop := self._begin_line(text, start, begin, pos, reason)) is not None:
                return stop
            # In a long text, searching for each head is far faster than scanning, but not once behind each literal.
            plain = pos == begin and size - pos > LOOK_BACK and not self._has_head(text, pos)
            found = None if plain else self._scan(text, pos)
            if found is None:
                end = size if reason else size - self._partial(text, pos)
                self._quotes.read(text, pos, end)
                return self._emit(text, start, end)
            self._quotes.read(text, pos, found.start())
            if (stop := self._at_literal(text, start, begin, found, reason)) is not None:
                return stop
            pos = found.end()
            if not found.lastgroup:
                self._quotes.read(text, found.start(), pos)

    def _after_gap(self, text: str, start: int, pos: int, reason: str | None) -> int | None:
        """Where reading stops at the first text of the answer, or after a call or reasoning; None if it goes on."""
        if self._gap == "call" and reason is not None and _begins_mark(self._spec, text[pos:]):
            return len(text)  # the answer was cut within a mark behind a call
        if self._echo and (end := self._echoed(text, pos, reason)) != pos:
            return start if end < 0 else end
        if self._gap != "call" and text[pos] in self._unmarked_heads and not self._was_refused(text, pos, pos):
            return self._try_unmarked(start, follows_text=False)
        return None

    def _begin_line(self, text: str, start: int, begin: int, pos: int, reason: str | None) -> int | None:
        """Where reading stops at the start of a line; None if it goes on."""
        indent = _INDENT.match(text, pos)
        name_at = indent.end() if indent else pos
        verdict = self._tool_line(text, name_at, reason)
        if verdict == "wait":
            return self._emit(text, start, pos)
        if verdict == "call":
            self._emit_before_call(text, start, name_at)
            return self._enter(bare=True, pos=name_at)
        if name_at < len(text):
            self._at_line_start = False
            if text[name_at] in self._python_heads and not self._was_refused(text, begin, name_at):
                return self._try_unmarked(self._emit(text, start, name_at), follows_text=True)
        return None

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
        if found.lastgroup:
            return self._at_run(text, start, begin, found, reason)
        if literal in ("{", "[") and not self._quotes.directly:
            return self._at_bracket(text, start, begin, at)
        if literal == "\n":
            self._at_line_start = True
            return None
        opens = literal in self._spec.open or literal in self._spec.begins
        closes = self._spec.close if opens else ()
        before = self._before(text, begin, at)
        try:
            quoted = self._quotes.quote(text, at, before, opens=opens, closes=closes, final=reason is not None)
        except Wait:
            return self._emit(text, start, at)
        if quoted:
            return None
        if literal in self._strays:
            return self._at_stray(text, start, begin, found, reason)
        begins_line = self._is_first(text, start, at) or bool(_LINE_START.search(before))
        if literal in self._thinks and not begins_line:
            self._guarded = False  # the grammar takes what follows for reasoning
            return None  # a word of a sentence
        self._emit_before_call(text, start, at)
        end = self._on_literal(literal, found.end())
        if self._dialect is not None:
            self._dialect.in_sentence = literal[0].isalnum() or not begins_line
        return end

    def _is_first(self, text: str, start: int, at: int) -> bool:
        """Whether nothing but white space stands before, in the answer or since a call or reasoning."""
        return bool(self._gap) and not text[start:at].strip()

    def _before(self, text: str, begin: int, at: int) -> str:
        """The last characters of the content before a position in text that is content from `begin` on."""
        known = text[max(begin, at - LOOK_BACK) : at]
        return known if at - begin >= LOOK_BACK else (self._last + known)[-LOOK_BACK:]

    def _at_run(self, text: str, start: int, begin: int, found: re.Match[str], reason: str | None) -> int | None:
        """Where reading stops at a run of back-ticks or tildes: a fence may hold calls without marks."""
        run, at = found.group(), found.start()
        if reason is None and found.end() == len(text) and len(run) < LOOK_BACK:
            return self._emit(text, start, at)
        before = self._before(text, begin, at)
        if (
            run.startswith(FENCES)
            and not (self._quotes.fence or self._is_first(text, start, at) or self._was_refused(text, begin, at))
            and self._spec.unmarked == "last"
            and self._unmarked_heads
            and _LINE_START.search(before)
        ):
            return self._try_unmarked(self._emit(text, start, at), follows_text=True)
        self._quotes.run(run, before)
        self._at_line_start = False
        return None

    def _at_bracket(self, text: str, start: int, begin: int, at: int) -> int | None:
        """Calls may begin behind text, too, where models are taught to write them without marks."""
        before = self._before(text, begin, at)
        within = before.rstrip(" \t")[-1:] not in _BEFORE_CALL
        if within or self._quotes.fence or self._was_refused(text, begin, at) or not self._unmarked_heads:
            return None
        if self._spec.unmarked == "alone":
            return None
        return self._try_unmarked(self._emit(text, start, at), follows_text=True)

    def _at_stray(self, text: str, start: int, begin: int, found: re.Match[str], reason: str | None) -> int | None:
        """Drop a mark that begins nothing, unless it is a word of a sentence."""
        literal, at, end = found.group(), found.start(), found.end()
        around_content = literal in self._spec.content_drop
        if literal in self._spec.close and self._open_in_text:
            self._open_in_text = False
            return None
        owed = literal in self._spec.close and self._owes_close
        self._owes_close = self._owes_close and not owed
        first = self._is_first(text, start, at)
        if not (owed or (first and (self._gap == "call" or around_content))):
            before = self._before(text, begin, at)[-1:]
            blanks = _INDENT.match(text, end, end + MAX_BLANKS)
            after = blanks.end() if blanks else end
            tail = text[after : after + self._longest]
            if reason is None and (not tail or any(mark.startswith(tail) for mark in self._literals)):
                return self._emit(text, start, at)
            beside_mark = tail.startswith(tuple(self._literals))
            token = around_content or is_token(literal)
            if not beside_mark and _is_word(before, tail[:1], token=token, spaced=after > end):
                return None
        self._emit(text, start, at)
        if around_content:
            self._gap = "reasoning"
            self._refused = False
            self._switch(Framing._read_text)
            return end
        self._last = (self._last + LEFT_OUT)[-LOOK_BACK:]
        self._writer.warn("stray_marker", literal)
        self._switch(Framing._read_text)  # looks again at the white space after it
        return end

    def _has_head(self, text: str, pos: int) -> bool:
        return any(text.find(head, pos) >= 0 for head in self._heads)

    def _emit(self, text: str, start: int, end: int) -> int:
        """Emit the content up to `end`; returns where the text held back begins."""
        if end > start and not (self._gap and text[start:end].isspace()):
            self._gap = ""
            self._echo = ""
            self._refused = False
            piece = text[start:end]
            self._last = (self._last + piece[-LOOK_BACK:])[-LOOK_BACK:]
            self._writer.text(piece)
            return end
        return start

    def _begin_text(self, last: str) -> None:
        """What follows stands in no quote. last: a line break if a line begins here."""
        self._last = last
        self._quotes.reset()

    def _emit_before_call(self, text: str, start: int, end: int) -> None:
        self._space = text[self._emit(text, start, end) : end]
        self._gap = "call"

    def _on_literal(self, literal: str, pos: int) -> int:
        spec = self._spec
        self._refused = False
        if literal in spec.open:
            self._space += literal
            return self._enter(bare=False, pos=pos)
        if literal in spec.begins:
            return self._enter(bare=False, pos=pos - len(literal))
        self._think_close = tuple(closing for opening, closing in spec.think if opening == literal)[:1]
        self._gap = "reasoning"
        self._begin_text("\n")
        self._switch(Framing._read_reasoning)
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

    def _tool_line(self, text: str, at: int, reason: str | None) -> str:
        """Whether a line that names a tool begins there: "call", "wait" for more text, or ""."""
        if "tool_line" not in self._spec.bare:
            return ""
        tool = _TOOL_LINE.match(text, at)
        if tool is None:
            return "wait" if reason is None and "tool:".startswith(text[at:].lower()) else ""
        word = _NAME.match(text, tool.end())
        if word is None:
            return "wait" if tool.end() == len(text) and reason is None else ""
        if word.end() == len(text) and reason is None:
            return "wait" if any(name.startswith(word.group()) for name in self._names) else ""
        return "call" if word.group() in self._names else ""

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

    # -- calls without marks -------------------------------------------------------------------

    def _try_unmarked(self, pos: int, *, follows_text: bool) -> int:
        python = load(DIALECTS["pythonic"]) if _reads_python(self._spec) else None
        self._attempt = Unmarked(
            self._spec,
            self._schemas,
            self._marks,
            follows_text=follows_text,
            python=python,
            writer=self._writer if self._unmarked_guarded and not follows_text else None,
        )
        self._switch(Framing._read_attempt)
        return pos

    @property
    def _passes_on(self) -> bool:
        """Whether a grammar has made it certain that the text is calls without marks."""
        return isinstance(self._attempt, Unmarked) and self._attempt.passes_on

    def _was_refused(self, text: str, begin: int, at: int) -> bool:
        """Whether what begins there was read as calls, and is none, or was read often enough."""
        if self._refused and skip_space(text, begin) >= at:
            return True
        return self._reread > MAX_REREAD and self._fed - len(text) + at < self._tried_to

    def _read_attempt(self, text: str, pos: int, reason: str | None) -> int:
        attempt = self._attempt
        assert attempt is not None
        end = attempt.step(text, pos, reason)
        self.told.unmarked |= self._passes_on
        if not attempt.verdict:
            return end
        self._attempt = None
        self._replay = attempt.rest()
        in_reasoning = isinstance(attempt, ReasoningCalls)
        if attempt.verdict == "calls":
            self._writer.guarded = False
            attempt.trial.commit(self._writer, attempt.calls)
            self.told.unmarked |= not in_reasoning
            self._gap = "call"
            self._begin_text("\n")
            self._switch(Framing._read_text)
        else:
            self._refused = True
            tried_to = self._fed - len(text) + end
            if tried_to - len(self._replay) < self._tried_to:
                self._reread += len(self._replay)
            self._tried_to = max(tried_to, self._tried_to)
            self._switch(Framing._read_reasoning if in_reasoning else Framing._read_text)
        return end

    # -- reasoning -----------------------------------------------------------------------------

    def _read_reasoning(self, text: str, pos: int, reason: str | None) -> int:
        if self._gap:
            pos = skip_space(text, pos)
            if pos == len(text):
                return pos
            self._gap = ""
        ends = [(at, close) for close in self._think_close if (at := self._found.after(text, close, pos)) >= 0]
        at, close = min(ends, default=(-1, ""))
        end = at if at >= 0 else len(text)
        opener = self._call_in_reasoning(text, pos, end)
        if opener >= 0:
            begin = pos + len(text[pos:opener].rstrip())
            self._attempt = ReasoningCalls(self._spec, self._schemas, self._dialect_of, closing=self._think_close)
            self._switch(Framing._read_attempt)
            return self._think(text, pos, begin)
        if at >= 0:
            self._writer.reasoning(text[pos:at].rstrip())
            self._begin_text("\n")  # what the reasoning quotes is nothing behind it
            self._refused = False
            self._gap = "reasoning"
            self._switch(Framing._read_first if self._spec.first else Framing._read_text)
            return at + len(close)
        if reason is None:
            marks = (*self._think_close, *self._call_openers)
            end -= partial_suffix(text, pos, marks, max(map(len, marks)))
            end = pos + whole_runs(text[pos:end].rstrip())
        end = pos + len(text[pos:end].rstrip())
        if end > pos:
            self._refused = False
        self._think(text, pos, end)
        return end if reason is None else len(text)

    def _think(self, text: str, pos: int, end: int) -> int:
        """Passes on reasoning; returns its end."""
        self._note(text, pos, end)
        self._last = self._before(text, pos, end)
        self._writer.reasoning(text[pos:end])
        return end

    def _note(self, text: str, begin: int, end: int) -> None:
        """Takes note of what reasoning quotes, up to `end`; it begins at `begin`."""
        offset = self._fed - len(text)
        pos = max(begin, self._noted - offset)
        for run in RUN.finditer(text, pos, end):
            self._quotes.read(text, pos, run.start())
            self._quotes.run(run[0], self._before(text, begin, run.start()))
            pos = run.end()
        self._quotes.read(text, pos, end)
        self._noted = max(offset + end, self._noted)

    def _call_in_reasoning(self, text: str, begin: int, end: int) -> int:
        """Where a call begins within reasoning, which a trial then reads; -1 if none does before `end`."""
        pos = begin
        while True:
            found = ((self._found.after(text, mark, pos), len(mark)) for mark in self._call_openers)
            pos = min((at for at, size in found if 0 <= at <= end - size), default=-1)
            if pos < 0 or not (self._was_refused(text, begin, pos) or self._is_quoted(text, begin, pos)):
                return pos
            pos += 1

    def _is_quoted(self, text: str, begin: int, at: int) -> bool:
        """Whether a mark within reasoning is quoted. It doesn't matter that it is in a fence, if it ends the answer."""
        self._note(text, begin, at)
        return self._quotes.begins_before(self._before(text, begin, at))

    # -- calls ---------------------------------------------------------------------------------

    def _enter(self, *, bare: bool, pos: int) -> int:
        # No grammar sees a call without a mark begin.
        self._writer.guarded = self._guarded and not bare
        dialect = self._dialect_of(self._spec)
        self._dialect = dialect(self._spec, self._writer, self._schemas, bare=bare, opener=self._space)
        self._switch(Framing._read_calls)
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
            self._switch(Framing._read_text)
            self._gap = "" if dialect.quoted else "call"
            self._at_line_start = self._lines
            self._open_in_text = dialect.quoted and not dialect.announced
            self._owes_close = not (dialect.closed or self._open_in_text)
            self._begin_text("" if dialect.quoted else "\n")
            self._echo = dialect.source.lstrip()


_INDENT = re.compile(r"[ \t]*")
_Table = tuple[frozenset[str], Literals, int, Search, Search, tuple[str, ...], frozenset[str]]
_TABLES: dict[tuple[FormatSpec, bool, bool], _Table] = {}


_BEFORE_CALL = ("", "\n", ".", ":", "!", "?", "…", LEFT_OUT)
"""What stands before a call without marks behind text: the end of a sentence."""
_OPENS_WORD = "\"'([|“‘*"
_ENDS_WORD = "\"').,:;?!]|”’*"


def _is_word(before: str, after: str, *, token: bool, spaced: bool) -> bool:
    """Whether a mark between these characters ("" at an end of the answer) is a word of a sentence.

    token: prose hardly holds it. spaced: white space follows it.
    """
    ends_line = after in ("", "\n")
    apart = before.isspace() or before in _OPENS_WORD
    if not token:
        return apart and before not in ("", "\n") if ends_line else True
    return apart and not ends_line and (spaced or after in _ENDS_WORD)


def _begins_mark(spec: FormatSpec, text: str) -> bool:
    """Whether the text is the beginning of a mark that ends calls."""
    return len(text) > 1 and any(
        mark != text and mark.startswith(text) for mark in (*spec.close, *spec.drop, *spec.markers)
    )


def _unmarked_heads(spec: FormatSpec, names: frozenset[str]) -> str:
    """The characters that may begin calls without marks."""
    if spec.unmarked == "never":
        return ""
    return _UNMARKED_HEADS + "".join({name[0] for name in names if name} if _reads_python(spec) else ())


def _reads_python(spec: FormatSpec) -> bool:
    return spec.dialect == "auto" or not PYTHON_FORMS.isdisjoint(spec.bare)


def _scanner(spec: FormatSpec, calls: bool, lines: bool) -> _Table:
    """The literals, those that aren't fences, the length of the longest, a search for them and for runs, one for their
    first characters, these characters, and the literals that begin nothing.

    calls: whether a call may come at all. If not, its marks are content. lines: line breaks are literals, too.
    """
    key = (spec, calls, lines)
    if (found := _TABLES.get(key)) is None:
        literals = {*spec.open, *spec.begins, *spec.close, *spec.drop, *(pair[0] for pair in spec.think)}
        if not calls:
            literals -= spec.call_marks
        literals.update(FENCES)
        others = {"\n"} if lines else set()
        if calls and spec.inline:
            others |= {"["} if "list" in spec.bare else {"{", "["}
        ordered = sorted(literals.difference(FENCES) | others, key=len, reverse=True)
        scan = re.compile("|".join([*map(re.escape, ordered), f"(?P<run>{RUN.pattern})"])).search
        heads = tuple(sorted({literal[0] for literal in literals | others}))
        trigger = re.compile(f"[{''.join(map(re.escape, heads))}]").search
        strays = frozenset((*spec.close, *spec.drop)) - {*spec.open, *spec.begins}
        longest = max(map(len, literals), default=1)
        marks = Literals(literals.difference(FENCES))
        found = _TABLES[key] = (frozenset(literals), marks, longest, scan, trigger, heads, strays)
    return found

"""A tool-call format as a value: `FormatSpec` holds everything that distinguishes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

Bare = Literal["call", "list", "tool_line"]
Unmarked = Literal["alone", "last", "never"]


@dataclass(frozen=True, slots=True)
class NamedSyntax:
    """For the dialect ``named``: a head that names the tool, followed by the arguments as one object."""

    written: str
    """How to render one call: a template with ``{name}``, ``{arguments}`` and, if needed, ``{index}``."""
    head: tuple[str, ...]
    """Templates, specific ones first. ``{name}`` is the tool's name, ``{id}`` the call's id. Without
    ``{name}`` the id contains it: ``functions.NAME:INDEX``."""
    tail: tuple[str, ...] = ()
    """Literals after the arguments, each optional."""
    quotes: tuple[tuple[str, str], ...] = ()
    """Pairs of literals that may also surround strings."""
    bare_keys: bool = False


@dataclass(frozen=True, slots=True)
class TagSyntax:
    """For the dialect ``tags``: each parameter is plain text between its own tags."""

    call: tuple[str, ...]
    """Templates with ``{name}``, and ``{index}`` if the tag counts the calls, from 1 on."""
    parameter: tuple[str, ...]
    """Templates with ``{key}``. With ``{string}`` the tag says whether the value is text or JSON, with ``{type}`` which
    type of JSON it is."""
    parameter_end: tuple[str, ...]
    call_end: tuple[str, ...] = ()
    """If empty, a call ends with its region."""
    empty_call: tuple[str, ...] = ()
    """Templates of a self-closing call without parameters."""
    special: bool = False
    """The tags are special tokens: one inside a value means that the value's closing tag is missing."""
    unquote: bool = False
    """A string may be wrapped in double quotes, which aren't part of it."""
    entities: bool = False
    """`&quot;` and `&amp;` in a tag stand for their characters."""
    cdata: bool = False
    """A value may stand in `<![CDATA[` and `]]>`, within which no tag ends it."""
    gap: str = "\n"
    """White space between tags, as the model writes it. If empty, line breaks around a value are part of it."""
    lines: bool = False
    """Each value stands on lines of its own. If not, a line break on one side of it alone is part of it."""


@dataclass(frozen=True, slots=True)
class ElementSyntax:
    """For the dialect ``elements``: each argument, and each key within an object, has a tag of its own name."""

    mark: str
    """Stands before every tag."""
    call: tuple[str, ...]
    """Templates with ``{name}``."""
    call_end: str
    item: str = "item"
    """The name of the tags around an array's items."""


@dataclass(frozen=True, slots=True)
class MessageSyntax:
    """For the dialect ``messages``: a header says what the message is. A format's `channels` begin headers, the first
    of them in the midst of a body, too."""

    written: str
    """How to render one call: a template with ``{name}``, and ``{arguments}`` or ``{call}``."""
    again: str
    """What stands between two calls."""
    bodies: tuple[str, ...]
    """Literals that end the header and begin the body."""
    ends: tuple[str, ...]
    """Literals that end the body."""
    reasoning: tuple[str, ...]
    """Recipients, channels and `bodies` that mean reasoning."""
    content: tuple[str, ...]
    """Those that mean content. Any other message is a call."""
    tools: str = ""
    """What stands before a tool's name in the header. With another recipient, unless it is a tool, a message is
    dropped with a `Warn`."""
    calls: Literal["arguments", "json", "tags"] = "arguments"
    """What a call's body holds: its arguments as one object, or a whole call as JSON or as tags."""
    call: TagSyntax | None = None
    """The tags, for `calls` "tags". The format's other `begins` may surround them."""


Spelling = Literal["json", "mixed", "python"]
"""How a value is spelled: as JSON, as Python, or with Python's words, such as ``None``, outside of JSON alone."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a model writes calls, character by character: `opening`, the calls with `between` between them, `closing`.

    Forced calls are written so, and past ones are shown so. A template's fields stand in braces.
    """

    call: str
    """A template with ``{name}`` and ``{arguments}``, and if needed ``{id}``, or ``{index}``, which counts the
    calls."""
    opening: str = ""
    between: str = ""
    closing: str = ""
    behind_several: str = ""
    """What stands behind `closing` if there are several calls, and may behind one."""
    empty: str = ""
    """A template of a call without arguments, if it isn't `call` with none."""
    parameter: str = ""
    """A template with ``{key}`` and ``{value}``, and if needed ``{string}`` or ``{type}`` as in `TagSyntax`. If empty,
    the arguments are one object."""
    separator: str = ""
    """What stands between two parameters."""
    comma: str = ", "
    """What stands between two members of a JSON object or array."""
    colon: str = ": "
    """What stands between a key of JSON and its value."""
    indent: str = ""
    """Each member of JSON stands on a line of its own, indented by as many more blanks as this says. Empty: on one
    line."""
    spelling: Spelling = "json"
    quoted: bool = False
    """A parameter's text stands in quotes, as in JSON."""
    sorted: bool = False
    """Keys come in the order of the alphabet."""
    first: Literal["0", "1"] = "0"
    """The `index` of the first call."""
    lead: str = ""
    """What may stand before the calls of an answer that is nothing else."""
    gap: str = ""
    """What stands between reasoning and calls; if empty, any white space may."""


Syntax = NamedSyntax | TagSyntax | ElementSyntax | MessageSyntax

BEGINS_JSON = ("{", "[", "```")
"""What calls without marks begin with."""

MAX_CALLS = 8
"""That a grammar allows in one answer. A weak model would list calls without end."""


@dataclass(frozen=True, slots=True, eq=False)
class FormatSpec:
    """How one family of models writes reasoning and calls. Delimiters match literally."""

    name: str
    dialect: str = ""
    """A dialect's name, or ``pkg.mod:Class``. If empty, text passes untouched."""
    syntax: Syntax | None = None
    aliases: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    """Literals that begin a region of calls."""
    close: tuple[str, ...] = ()
    """Literals that end it. Optional where the dialect recognises the end without them."""
    begins: tuple[str, ...] = ()
    """Literals of a call that also begin a region, for models that omit the opener."""
    channels: tuple[str, ...] = ()
    """Those of `begins` whose regions hold content and reasoning, too."""
    first: tuple[str, ...] = ()
    """Templates, specific ones first, of how an answer begins, also behind its reasoning, if the beginning of its first
    region stands in the prompt or nowhere. One without ``{name}`` is no content; one with it is the beginning of the
    region."""
    think: tuple[tuple[str, str], ...] = ()
    """Pairs of literals around reasoning. The first pair's end also closes reasoning that the
    prompt opened."""
    drop: tuple[str, ...] = ()
    """Other special tokens that are never content."""
    call_drop: tuple[str, ...] = ()
    """Those of `drop` that stand around calls alone."""
    content_drop: tuple[str, ...] = ()
    """Those of `drop` and `close` that a well-formed answer holds beside its calls: no `Warn` tells of them, and white
    space behind one is layout."""
    bare: tuple[Bare, ...] = ()
    """Forms of a call of this format that need no `open` if they name a declared tool: ``name(...)``, a list
    ``[name(...)]``, a line ``Tool: name``."""
    unmarked: Unmarked = "last"
    """Where calls without marks count, as JSON or in a form of `bare`. ``alone``: an answer, after its reasoning, that
    is nothing but calls of declared tools with arguments that fit. ``last``: also a fence that ends the answer, and
    calls followed by JSON that is no call."""
    inline: bool = False
    """The models are taught to write calls without marks, so that one also counts at the start of an answer that goes
    on in words, and behind a sentence at the end of an answer."""
    calls_in_reasoning: Literal["last", "never"] = "last"
    """Where a call within reasoning counts. ``last``: where the answer ends right after it."""
    keys: tuple[str, ...] = ("name", "arguments")
    """How a JSON call is written: the keys of its name and of its arguments. If empty, the name is the key of the
    arguments."""
    listed: bool = False
    """JSON calls are written as one array."""
    lines: bool = False
    """Pythonic calls are written one per line, without a list's brackets."""
    echo: bool = False
    """The model may repeat a region's body and end marker; the repetition is dropped."""
    after: Literal["content", "drop"] = "content"
    """How to treat text after a call. With ``drop``, one `Warn` at the end reports it."""
    unknown_tools: Literal["refuse", "forward"] = "refuse"
    """How to treat a call of an undeclared tool. With ``refuse``, its text stays content, marks included. A `bare`
    call of one is always content."""
    layout: Layout | None = None
    """How calls are written. None: as the dialect's other fields say, see `normalizers.write.layout`."""
    result: tuple[str, str] | tuple[()] = ()
    """Literals around a tool's result."""
    keep_special: bool = True
    """Ask the engine to keep special tokens in the text."""

    @property
    def markers(self) -> tuple[str, ...]:
        """The format's special tokens, which are never content."""
        thinking = tuple(mark for pair in self.think for mark in pair)
        literals = (*self.open, *self.close, *self.drop, *thinking, *self.begins, *self._syntax_marks)
        marks = (mark for mark in literals if mark and mark[0] in "<[]" and mark[-1] in ">]")
        return tuple(sorted(set(marks), key=len, reverse=True))

    @property
    def call_marks(self) -> frozenset[str]:
        """The literals that stand in and around calls alone: content, if no tool is declared."""
        marks = {*self.open, *self.close, *self.begins, *self._syntax_marks, *self.call_drop}
        return frozenset(marks - {*self.channels})

    @property
    def _syntax_marks(self) -> Iterator[str]:
        syntax = self.syntax
        named = (*syntax.tail, *syntax.head) if isinstance(syntax, NamedSyntax) else ()
        tagged = (*syntax.parameter, *syntax.call) if isinstance(syntax, TagSyntax) and syntax.special else ()
        return (piece for template in (*named, *tagged) for piece in re.split(r"\{\w+\}| ", template))

    @property
    def begun(self) -> bool:
        """Whether the prompt writes the beginning of the answer's first region."""
        return any("{name}" in template for template in self.first)

    @property
    def openers(self) -> tuple[str, ...]:
        """The literals that begin calls and nothing else, the longest first."""
        return tuple(sorted({*self.open, *self.begins} - {*self.channels}, key=len, reverse=True))

    @property
    def untouched(self) -> bool:
        return not self.dialect


def on_lines(spec: FormatSpec, syntax: TagSyntax) -> bool:
    """Whether each value stands on lines of its own: as the format's layout has it, if it has any."""
    layout = spec.layout
    return "\n{value}\n" in layout.parameter if layout is not None and layout.parameter else syntax.lines


@cache
def call_format(spec: FormatSpec) -> FormatSpec:
    """The format of a call within a message, whose dialect is `MessageSyntax.calls`."""
    syntax = spec.syntax
    assert isinstance(syntax, MessageSyntax)
    marks = tuple(mark for mark in spec.begins if mark not in spec.channels)
    return replace(
        spec,
        dialect=syntax.calls,
        syntax=syntax.call,
        open=marks if syntax.calls == "tags" else (),
        begins=(),
        channels=(),
        first=(),
    )

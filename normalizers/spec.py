"""A tool-call format as a value: `FormatSpec` holds everything that distinguishes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
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
    """Templates with ``{name}``."""
    parameter: tuple[str, ...]
    """Templates with ``{key}``, and ``{string}`` if the tag says whether the value is text or JSON."""
    parameter_end: str
    call_end: tuple[str, ...] = ()
    """If empty, a call ends with its region."""
    empty_call: tuple[str, ...] = ()
    """Templates of a self-closing call without parameters."""
    special: bool = False
    """The tags are special tokens: one inside a value means that the value's closing tag is missing."""
    unquote: bool = False
    """A string may be wrapped in double quotes, which aren't part of it."""


MAX_CALLS = 8
"""That a grammar allows in one answer. A weak model would list calls without end."""


@dataclass(frozen=True, slots=True, eq=False)
class FormatSpec:
    """How one family of models writes reasoning and calls. Delimiters match literally."""

    name: str
    dialect: str = ""
    """A dialect's name, or ``pkg.mod:Class``. If empty, text passes untouched."""
    syntax: NamedSyntax | TagSyntax | None = None
    aliases: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    """Literals that begin a region of calls."""
    close: tuple[str, ...] = ()
    """Literals that end it. Optional where the dialect recognises the end without them."""
    begins: tuple[str, ...] = ()
    """Literals of a call that also begin a region, for models that omit the opener."""
    channels: tuple[str, ...] = ()
    """Those of `begins` whose regions hold content and reasoning, too."""
    think: tuple[tuple[str, str], ...] = ()
    """Pairs of literals around reasoning. The first pair's end also closes reasoning that the
    prompt opened."""
    drop: tuple[str, ...] = ()
    """Other special tokens that are never content."""
    call_drop: tuple[str, ...] = ()
    """Those of `drop` that stand around calls alone."""
    bare: tuple[Bare, ...] = ()
    """Forms of a call of this format that need no `open` if they name a declared tool: ``name(...)``, a list
    ``[name(...)]``, a line ``Tool: name``."""
    unmarked: Unmarked = "last"
    """Where calls without marks count, as JSON or in a form of `bare`. ``alone``: an answer, after its reasoning, that
    is nothing but calls of declared tools with arguments that fit. ``last``: also a fence that ends the answer, and
    calls followed by JSON that is no call."""
    inline: bool = False
    """The models are taught to write calls without marks, so that one also counts at the start of an answer that goes
    on, and at the end of any answer. JSON in the dialect ``json``, else the forms of `bare`."""
    calls_in_reasoning: Literal["last", "never"] = "last"
    """Where a call within reasoning counts. ``last``: where the answer ends right after it."""
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
    def untouched(self) -> bool:
        return not self.dialect

"""A tool-call format as a value: one `FormatSpec` row says everything that sets it apart."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Bare = Literal["call", "list", "object", "tool_line"]


@dataclass(frozen=True, slots=True)
class NamedSyntax:
    """For the dialect ``named``: a head that names the tool, then the arguments as one object."""

    written: str
    """How one call is rendered: with ``{name}``, ``{arguments}`` and perhaps ``{index}``."""
    head: tuple[str, ...]
    """Templates, the more specific first. ``{name}`` is the tool's name, ``{id}`` the call's id; where
    there is no ``{name}``, the id holds it: ``functions.NAME:INDEX``."""
    tail: tuple[str, ...] = ()
    """Literals behind the arguments, each optional."""
    quotes: tuple[tuple[str, str], ...] = ()
    """Further pairs of literals around strings."""
    bare_keys: bool = False


@dataclass(frozen=True, slots=True)
class TagSyntax:
    """For the dialect ``tags``: each parameter as plain text between tags of its own."""

    call: tuple[str, ...]
    """Templates with ``{name}``."""
    parameter: tuple[str, ...]
    """Templates with ``{key}``, and ``{string}`` where the tag says if the value is text or JSON."""
    parameter_end: str
    call_end: tuple[str, ...] = ()
    """Empty: a call ends with its region."""
    empty_call: tuple[str, ...] = ()
    """Templates of a call without parameters that closes itself."""
    special: bool = False
    """The tags are special tokens: one in a value means that the value's end is missing."""
    unquote: bool = False
    """A string may stand in double quotes, which are not part of it."""


@dataclass(frozen=True, slots=True, eq=False)
class FormatSpec:
    """How one family of models writes reasoning and calls. Delimiters are matched literally."""

    name: str
    dialect: str = ""
    """Key of the registry's dialect table, or ``pkg.mod:Class``; empty: text passes untouched."""
    syntax: NamedSyntax | TagSyntax | None = None
    aliases: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    """Literals that begin a region of calls."""
    close: tuple[str, ...] = ()
    """Literals that end it; where the dialect can tell the end by itself, they are optional."""
    begins: tuple[str, ...] = ()
    """Literals of a call itself that begin a region where the opener is missing."""
    think: tuple[tuple[str, str], ...] = ()
    """Pairs of literals around reasoning. The first pair's end also closes reasoning that the
    prompt has opened."""
    drop: tuple[str, ...] = ()
    """Further special tokens that are never content."""
    bare: tuple[Bare, ...] = ()
    """Forms in which a call without `open` counts, if it names a tool that the request declares:
    ``name(...)`` at the start of a line, a list ``[name(...)]``, a JSON object or list of them, a line
    ``Tool: name``."""
    listed: bool = False
    """Several JSON calls are written as one array."""
    lines: bool = False
    """Pythonic calls stand one a line, without a list's brackets."""
    echo: bool = False
    """The model may repeat a region's body and end marker: the repetition is dropped."""
    after: Literal["content", "drop"] = "content"
    """What becomes of text behind a call: with ``drop`` it is told as one `Warn` at the end."""
    unknown_tools: Literal["forward", "refuse"] = "forward"
    """What becomes of a call of a tool that the request doesn't declare: with ``refuse`` its text is content.
    A `bare` one never counts."""
    result: tuple[str, str] | tuple[()] = ()
    """Literals around a tool's result."""
    keep_special: bool = True
    """Ask the engine to keep special tokens in the text."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Special tokens of the format, none of which is ever content."""
        syntax = self.syntax
        named = (*syntax.tail, *syntax.head) if isinstance(syntax, NamedSyntax) else ()
        tagged = (*syntax.parameter, *syntax.call) if isinstance(syntax, TagSyntax) and syntax.special else ()
        thinking = tuple(mark for pair in self.think for mark in pair)
        literals = (*self.open, *self.close, *self.drop, *thinking, *self.begins)
        pieces = (piece for template in (*named, *tagged) for piece in re.split(r"\{\w+\}| ", template))
        marks = (mark for mark in (*literals, *pieces) if mark and mark[0] in "<[]" and mark[-1] in ">]")
        return tuple(sorted(set(marks), key=len, reverse=True))

    def unmarked(self, text: str) -> str:
        """`text` without the special tokens, which are never content."""
        for marker in self.markers:
            text = text.replace(marker, "")
        return text.strip()

    @property
    def untouched(self) -> bool:
        return not self.dialect

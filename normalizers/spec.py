"""A tool-call format as a value: one `FormatSpec` row says everything that sets it apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Bare = Literal["call", "list", "object"]


@dataclass(frozen=True, slots=True, eq=False)
class FormatSpec:
    """How one family of models writes reasoning and calls. Delimiters are matched literally."""

    name: str
    dialect: str = ""
    """Key of the registry's dialect table, or ``pkg.mod:Class``; empty: text passes untouched."""
    aliases: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    """Literals that begin a region of calls."""
    close: tuple[str, ...] = ()
    """Literals that end it; where the dialect can tell the end by itself, they are optional."""
    think: tuple[tuple[str, str], ...] = ()
    """Pairs of literals around reasoning. The first pair's end also closes reasoning that the
    prompt has opened."""
    drop: tuple[str, ...] = ()
    """Further special tokens that are never content."""
    bare: tuple[Bare, ...] = ()
    """Forms in which a call without `open` counts, if it names a tool that the request declares:
    ``name(...)`` at the start of a line, a list ``[name(...)]``, a JSON object or list of them."""
    echo: bool = False
    """The model may repeat a region's body and end marker: the repetition is dropped."""
    after: Literal["content", "drop"] = "content"
    """What becomes of text behind a call."""
    result: tuple[str, str] | tuple[()] = ()
    """Literals around a tool's result."""
    keep_special: bool = True
    """Ask the engine to keep special tokens in the text."""

    @property
    def untouched(self) -> bool:
        return not self.dialect

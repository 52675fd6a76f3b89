"""Tables for people: styled and fitted to a terminal, plain aligned text in a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Sequence

from rich.console import Console, RenderableType
from rich.table import Table

from gateway.wire.text import printable

UNBOUNDED = 100_000
"""Columns of a pipe, unless COLUMNS says otherwise: one line for each row."""


def console() -> Console:
    """A console on stdout. Writes no escape codes into a pipe, and no styles where NO_COLOR is set."""
    terminal = sys.stdout.isatty()
    return Console(
        force_terminal=terminal,
        color_system="auto" if terminal and not os.environ.get("NO_COLOR") else None,
        width=None if terminal or "COLUMNS" in os.environ else UNBOUNDED,
        highlight=False,
        markup=False,
        emoji=False,
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[str] = ()) -> Table:
    """A table without rules; `right` names the columns of numbers. Cells break where they don't fit."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in head:
        made.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(printable(cell) for cell in row))
    return made


def show(*parts: RenderableType) -> None:
    """Prints the parts, without spaces at the ends of lines."""
    out = console()
    with out.capture() as captured:
        for part in parts:
            out.print(part)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))

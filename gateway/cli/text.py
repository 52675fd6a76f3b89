"""Prints text from models, pages, servers and clients. All that a command prints goes through here."""

from __future__ import annotations

import sys
from typing import TextIO

from gateway.wire.text import printable


def say(*values: object, end: str = "\n", file: TextIO | None = None, flush: bool = False) -> None:
    """As `print`, of printable text."""
    print(printable(" ".join(map(str, values))), end=end, file=file or sys.stdout, flush=flush)

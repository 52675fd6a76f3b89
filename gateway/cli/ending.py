"""Exits quietly when stdout is closed, as in `ctxgate formats | head -1`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

BROKEN_PIPE = 141
"""What shells report for a program that SIGPIPE ended."""


def exit_quietly(run: Callable[[], int]) -> int:
    """Returns the exit code of `run` after flushing stdout, or BROKEN_PIPE once nobody reads stdout."""
    try:
        try:
            return run()
        finally:
            if sys.stdout is not None:  # None: stdout was closed before the start
                sys.stdout.flush()
    except BrokenPipeError:
        # Without this, Python complains again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE

"""What a command does once whoever read its output has gone, as `head` has."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

BROKEN_PIPE = 141
"""As shells tell of a program that SIGPIPE has ended."""


def while_read(run: Callable[[], int]) -> int:
    """The exit code of `run`, all that it printed written; BROKEN_PIPE once nobody reads that."""
    try:
        try:
            return run()
        finally:
            if sys.stdout is not None:  # as where it was closed before
                sys.stdout.flush()
    except BrokenPipeError:
        # Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE

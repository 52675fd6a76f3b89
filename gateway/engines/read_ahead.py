"""Has the system read weights into its page cache while their engine waits for memory."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def read_ahead(files: Iterable[Path]) -> int:
    """Returns the bytes for which the system was asked; 0 where it has no such call. Raises nothing.

    Blocks while the system begins to read, which may take as long as reading.
    """
    asked = 0
    for file in files:
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue  # the engine's start will say so
        try:
            size = os.fstat(descriptor).st_size
            os.posix_fadvise(descriptor, 0, size, os.POSIX_FADV_WILLNEED)
            asked += size
        except (OSError, AttributeError):  # a file system without it; macOS
            continue
        finally:
            os.close(descriptor)
    return asked

"""What a program writes to its terminal."""

from __future__ import annotations

import os
import select
import time

from tests.patience import PATIENCE


def until(descriptor: int, expected: bytes, rest: list[bytes]) -> bytes:
    """What comes up to the expected text; what came with it and follows is kept in `rest` for the next call."""
    found = rest.pop() if rest else b""
    end = time.monotonic() + PATIENCE
    while expected not in found:
        assert select.select([descriptor], [], [], max(0, end - time.monotonic()))[0], found
        try:
            found += os.read(descriptor, 1024)
        except OSError:  # the other end is closed
            assert expected in found, found
    before, _, after = found.partition(expected)
    rest.append(after)
    return before + expected

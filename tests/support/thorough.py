"""How many examples and cases run: some in each run of the suite, all with `scripts/test --slow`."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from typing import TypeVar

import pytest

Item = TypeVar("Item")

THOROUGH = "CTXGATE_TEST_THOROUGH" in os.environ


def examples(number: int) -> int:
    """A number of random examples: a third of it in each run."""
    return number if THOROUGH else max(1, number // 3)


def spread(items: Sequence[Item], maximum: int) -> Sequence[Item]:
    """At most that many of the items in each run, evenly spread and with the first; all if thorough."""
    return items if THOROUGH else items[:: max(1, -(-len(items) // maximum))]


def left_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Cases of tests marked `some(n)` that this run doesn't take: all but the first, and one of n drawn by its name."""
    out: list[pytest.Item] = []
    met: set[tuple[object, str]] = set()
    for item in items if not THOROUGH else ():
        mark = item.get_closest_marker("some")
        if mark is None:
            continue
        name = item.nodeid.partition("[")[0]
        if (item.path, name) in met and zlib.crc32(item.nodeid.encode()) % mark.args[0]:
            out.append(item)
        met.add((item.path, name))
    return out

"""Which items `truncation: auto` drops, and how often it counts tokens to know."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.features.responses.truncation import MAX_COUNTS, fitting, without

ITEM = {"role": "user", "content": ""}


def conversation(sizes: list[int]) -> list[dict[str, Any]]:
    return [{**ITEM, "content": "x" * size} for size in [*sizes, 1]]


@given(st.lists(st.integers(0, 3000), max_size=300), st.floats(0.5, 20), st.integers(0, 50), st.integers(4, 40_000))
async def test_it_drops_as_few_as_it_must_in_few_counts(
    sizes: list[int], density: float, each: int, window: int
) -> None:
    """Whatever a token is: density bytes, and `each` more tokens for an item."""
    asked = 0

    async def count(items: list[dict[str, Any]]) -> int:
        nonlocal asked
        asked += 1
        return int(sum(len(item["content"]) for item in items) / density) + each * len(items)

    items = conversation(sizes)
    kept = await fitting(items, window, None, count)
    counts = asked
    room = window - window // 4
    fits = [at for at in range(len(sizes) + 1) if await count(without(items, at)) <= room]
    best = fits[0] if fits else len(sizes)
    dropped = len(items) - len(kept)
    assert counts <= MAX_COUNTS
    assert kept == items[dropped:]
    assert best <= dropped
    assert dropped == best or counts == MAX_COUNTS


async def test_one_that_fits_is_counted_once() -> None:
    asked = []

    async def count(items: list[dict[str, Any]]) -> int:
        asked.append(len(items))
        return 9

    items = conversation([3] * 1000)
    assert await fitting(items, 10**6, None, count) == items
    assert asked == [1001]

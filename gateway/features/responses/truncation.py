"""`truncation: auto` of the Responses API: drops the oldest items of a conversation that is too long."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate

from gateway.core.in_thread import in_thread_if_large
from gateway.features.responses.wire.request import Item
from gateway.request.token_estimate import BYTES_PER_TOKEN
from gateway.wire.chat import encode

MAX_COUNTS = 12
"""After these, it may drop a few items more than necessary."""
SPARE = 4
"""The answer may use at least the window divided by this, unless the client asks for less."""


async def fitting(
    items: Sequence[Item],
    window: int | None,
    answer: int | None,
    count: Callable[[list[Item]], Awaitable[int]],
    size: int = 0,
) -> list[Item]:
    """Drops as many of the oldest items as necessary to fit the window; none if the window isn't known.

    Keeps system messages, and everything from the user's last message on; drops results whose calls are gone.
    window: of the model, in tokens. answer: the client's limit of tokens. count: counts the tokens of a conversation,
    which takes long, so each guess is that of the items' sizes and of the counts before. size: of all, about, in bytes.
    """
    if window is None:
        return [*items]
    spare = window // SPARE
    room = window - (spare if answer is None else min(answer, spare))
    sizes = await in_thread_if_large(size, _sizes, items)
    least, maximum = 0, len(sizes) - 1
    density = BYTES_PER_TOKEN
    for turn in range(MAX_COUNTS):
        if least == maximum:
            break
        fits = bisect_left(sizes, -room * density)
        guess = (least + maximum) // 2 if turn % 3 == 2 else min(max(fits, least), maximum - 1)
        tokens = await count(without(items, guess))
        if tokens <= room:
            maximum = guess
        else:
            least = guess + 1
        density = -sizes[guess] / max(tokens, 1)
    return without(items, maximum)


def _sizes(items: Sequence[Item]) -> list[int]:
    """The bytes of the conversation without its oldest items: 0, 1, 2 of them, and so on; negative, to be in order."""
    own = [len(encode(item)) for item in items]
    total = sum(own)
    return [-total, *(gone - total for gone in accumulate(own[place] for place in _droppable(items)))]


def without(items: Sequence[Item], oldest: int) -> list[Item]:
    """Drops that many of the oldest items, and results whose calls are gone."""
    dropped = set(_droppable(items)[:oldest])
    kept = [item for place, item in enumerate(items) if place not in dropped]
    gone = {items[place].get("call_id") for place in dropped if str(items[place].get("type")).endswith("_call")}
    return [item for item in kept if not (str(item.get("type")).endswith("_output") and item.get("call_id") in gone)]


def _droppable(items: Sequence[Item]) -> list[int]:
    """The indices of the items that may be dropped, the oldest first."""
    asked = [place for place, item in enumerate(items) if item.get("role") == "user"]
    end = asked[-1] if asked else max(0, len(items) - 1)
    return [place for place in range(end) if items[place].get("role") not in ("system", "developer")]

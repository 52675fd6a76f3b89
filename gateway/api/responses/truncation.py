"""`truncation: auto` of the Responses API: drops the oldest items of a conversation that is too long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from gateway.wire.responses.request import Item

SPARE = 4
"""The answer may use at least the window divided by this, unless the client asks for less."""


async def fitting(
    items: Sequence[Item], window: int | None, answer: int | None, count: Callable[[list[Item]], Awaitable[int]]
) -> list[Item]:
    """Drops as many of the oldest items as necessary to fit the window; none if the window isn't known.

    Keeps system messages, and everything from the user's last message on; drops results whose calls are gone.
    window: of the model, in tokens. answer: the client's limit of tokens. count: counts the tokens of a conversation.
    """
    if window is None:
        return [*items]
    spare = window // SPARE
    room = window - (spare if answer is None else min(answer, spare))
    most = len(_droppable(items))
    if await count([*items]) <= room:
        return [*items]
    least = 1
    while least < most:
        middle = (least + most) // 2
        if await count(without(items, middle)) <= room:
            most = middle
        else:
            least = middle + 1
    return without(items, most)


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

"""JSON with a value of another kind at each of its places in turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

ODD: list[Any] = [None, 7, -1.5, True, "x", "", [], [7], {}, {"a": 1}]
Place = tuple[str | int, ...]


def mutations(value: Any) -> Iterator[tuple[Place, Any]]:
    """The value with something else at each of its places in turn."""
    for place in places(value):
        for odd in ODD:
            yield place, replaced(value, place, odd)


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*at, key))


def replaced(value: Any, place: Place, by: Any) -> Any:
    if not place:
        return by
    copy: Any = list(value) if isinstance(value, list) else dict(value)
    copy[place[0]] = replaced(value[place[0]], place[1:], by)
    return copy

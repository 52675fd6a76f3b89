"""The newest events of a room, for those who follow it: a bounded ring; whoever falls behind it reads the store."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from gateway.rooms.schemas import Event, encode
from gateway.wire import sse

MAX_EVENTS, MAX_BYTES = 64, 64 * 1024


class Frame(NamedTuple):
    """An event as it is sent."""

    seq: int
    event_type: str
    data: bytes


def frame(event: Event) -> Frame:
    """A server-sent event; its id is the event's number in the room."""
    return Frame(event.seq, event.event_type, sse.named(event.event_type, encode(event), event.seq))


class Feed:
    """Frames in the order of their numbers; `news` is set once there are more."""

    __slots__ = ("_frames", "_size", "news")

    def __init__(self) -> None:
        self._frames: deque[Frame] = deque()
        self._size = 0
        self.news = asyncio.Event()

    def publish(self, events: Sequence[Event]) -> None:
        """Events that are durable, in their order and without a gap to those before."""
        for event in events:
            self._frames.append(made := frame(event))
            self._size += len(made.data)
        while len(self._frames) > MAX_EVENTS or self._size > MAX_BYTES:
            self._size -= len(self._frames.popleft().data)
        if events:
            self.wake()

    def forget(self) -> None:
        """Others may have written to the room: whoever follows it reads the store."""
        self._frames.clear()
        self._size = 0
        self.wake()

    def wake(self) -> None:
        """Those who wait look again."""
        self.news.set()
        self.news = asyncio.Event()

    def since(self, seq: int) -> list[Frame] | None:
        """What came after number `seq`; None where the ring doesn't reach so far back."""
        if not self._frames or self._frames[0].seq > seq + 1:
            return None
        return [made for made in self._frames if made.seq > seq]

"""The newest events of a room, for those who follow it: a bounded ring; whoever falls behind it reads the store."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from gateway.rooms.shapes import Event, encode

MAX_EVENTS, MAX_BYTES = 64, 64 * 1024


def frame(event: Event) -> bytes:
    """A server-sent event; its id is the event's number in the room."""
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (event.seq, event.event_type.encode(), encode(event))


class Feed:
    """Frames in the order of their numbers; `news` is set once there are more."""

    __slots__ = ("_frames", "_size", "news")

    def __init__(self) -> None:
        self._frames: deque[tuple[Event, bytes]] = deque()
        self._size = 0
        self.news = asyncio.Event()

    def publish(self, events: Sequence[Event]) -> None:
        """Events that are durable, in their order and without a gap to those before."""
        for event in events:
            data = frame(event)
            self._frames.append((event, data))
            self._size += len(data)
        while len(self._frames) > MAX_EVENTS or self._size > MAX_BYTES:
            _, data = self._frames.popleft()
            self._size -= len(data)
        if events:
            self.news.set()
            self.news = asyncio.Event()

    def since(self, seq: int) -> list[tuple[Event, bytes]] | None:
        """What came after number `seq`; None where the ring doesn't reach so far back."""
        if not self._frames or self._frames[0][0].seq > seq + 1:
            return None
        return [(event, data) for event, data in self._frames if event.seq > seq]

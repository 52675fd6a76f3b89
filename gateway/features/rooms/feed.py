"""The newest events of a room, in a bounded ring. A follower that falls behind it reads from the store."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from gateway.features.rooms.schemas import Event, encode
from gateway.wire import sse

MAX_EVENTS, MAX_BYTES = 64, 64 * 1024


class Frame(NamedTuple):
    """An encoded event."""

    seq: int
    event_type: str
    data: bytes


def frame(event: Event) -> Frame:
    """Encodes a server-sent event; its id is the event's number in the room."""
    return Frame(event.seq, event.event_type, sse.named(event.event_type, encode(event), event.seq))


class Feed:
    """Frames in the order of their numbers. `news` is set when there are more."""

    __slots__ = ("_frames", "_size", "news")

    def __init__(self) -> None:
        self._frames: deque[Frame] = deque()
        self._size = 0
        self.news = asyncio.Event()

    def publish(self, events: Sequence[Event]) -> None:
        """Adds durable events, in order and without a gap to those before."""
        for event in events:
            self._frames.append(encoded := frame(event))
            self._size += len(encoded.data)
        while len(self._frames) > MAX_EVENTS or self._size > MAX_BYTES:
            self._size -= len(self._frames.popleft().data)
        if events:
            self.wake()

    def forget(self) -> None:
        """Empties the ring, since others may have written to the room: followers read from the store."""
        self._frames.clear()
        self._size = 0
        self.wake()

    def wake(self) -> None:
        """Makes every waiting follower look again."""
        self.news.set()
        self.news = asyncio.Event()

    def since(self, seq: int) -> list[Frame] | None:
        """The frames after number `seq`; None if the ring no longer holds them."""
        if not self._frames or self._frames[0].seq > seq + 1:
            return None
        return [encoded for encoded in self._frames if encoded.seq > seq]

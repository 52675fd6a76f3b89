"""Server-sent events, incrementally."""

from __future__ import annotations

from collections.abc import Callable

DEFAULT_MAX_EVENT_SIZE = 8 * 1024 * 1024
"""Bytes held for one unfinished event. Far above any real chunk, it bounds what a broken engine can make us hold."""

DONE = b"data: [DONE]\n\n"


class EventTooLarge(ValueError):
    pass


class SSEReader:
    """Bytes in any split in, the `data` of each finished event out.

    The fields `event`, `id` and `retry` are dropped: OpenAI's streams carry all in `data`. So are comments, unless
    `comment` takes them. Lines may end in LF or CRLF. Raises EventTooLarge.
    """

    __slots__ = ("_data", "_max", "_rest", "comment")

    def __init__(self, max_event_size: int = DEFAULT_MAX_EVENT_SIZE) -> None:
        self.comment: Callable[[bytes], None] | None = None
        self._rest = b""
        self._data: list[bytes] = []
        self._max = max_event_size

    def feed(self, data: bytes) -> list[bytes]:
        if self._rest:
            data = self._rest + data
        elif data.find(b"\n") == len(data) - 2 and data.startswith(b"data: ") and data[-1:] == b"\n" and not self._data:
            # One event of one line: what most engines send at a time.
            return [data[6:-2].rstrip(b"\r")]
        lines = data.split(b"\n")
        self._rest = lines.pop()
        events: list[bytes] = []
        held = self._data
        for line in lines:
            if line.startswith(b"data: "):
                held.append(line[6:])
            elif line == b"" or line == b"\r":
                if held:
                    one = held[0] if len(held) == 1 else b"\n".join(part.rstrip(b"\r") for part in held)
                    events.append(one.rstrip(b"\r"))
                    held.clear()
            elif line.startswith(b"data:"):
                held.append(line[5:])
            elif self.comment is not None and line.startswith(b":"):
                self.comment(line)
        if len(self._rest) > self._max or (held and sum(map(len, held)) > self._max):
            raise EventTooLarge(f"a server-sent event exceeds {self._max} bytes")
        return events

    @property
    def between(self) -> bool:
        """No event is half read."""
        return not self._rest and not self._data

    def finish(self) -> list[bytes]:
        """The event that the end of the stream completes, if any: some engines leave out the last blank line."""
        return self.feed(b"\n\n") if self._rest or self._data else []


def named(name: str, payload: bytes, id: int | None = None) -> bytes:
    """An event with a name, and an id by which a client resumes."""
    head = b"" if id is None else b"id: %d\n" % id
    return b"%bevent: %b\ndata: %b\n\n" % (head, name.encode(), payload)


def event(payload: bytes) -> bytes:
    return b"data: " + payload + b"\n\n"


def events(payloads: list[bytes]) -> bytes:
    if len(payloads) == 1:
        return b"data: " + payloads[0] + b"\n\n"
    return b"".join(map(event, payloads))

"""Server-sent events without I/O (WHATWG HTML §9.2): one incremental reader, one writer."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

DEFAULT_MAX_EVENT_SIZE = 1536 * 1024
"""Largest unfinished event in bytes. Far above any real chunk; bounds the memory and the time that a broken server can
use."""

DONE = b"data: [DONE]\n\n"

CR = 13
"""As a number: `bytes in bytes` is several times slower."""


class EventTooLarge(ValueError):
    """An event exceeds the reader's bound."""


class SSEReader:
    """Takes bytes in any split; returns the `data` of each finished event.

    Lines end in LF, CRLF or CR. Drops the fields `event`, `id` and `retry`: OpenAI's streams put everything into
    `data`. Drops comments too, unless `comment` is set: it receives each comment line. Raises EventTooLarge.
    """

    __slots__ = ("_after_cr", "_begun", "_data", "_max", "_rest", "_size", "comment")

    def __init__(self, max_event_size: int = DEFAULT_MAX_EVENT_SIZE) -> None:
        self.comment: Callable[[bytes], None] | None = None
        self._rest: list[bytes] = []
        """Pieces of the unfinished line."""
        self._data: list[bytes] = []
        """Data lines of the unfinished event."""
        self._size = 0
        """Bytes in `_rest` and `_data`, field names included."""
        self._begun = False
        """The first line has been read; a byte order mark may precede it."""
        self._after_cr = False
        """The last line ended in CR; a following LF is part of that line end."""
        self._max = max_event_size

    def feed(self, data: bytes) -> list[bytes]:
        if not self._size and data.startswith(b"data: ") and data.endswith(b"\n\n") and CR not in data:
            # Whole events of one line each, as most engines send them.
            if data.find(b"\n") == len(data) - 2:
                return [data[6:-2]]
            found = data[6:-2].split(b"\n\ndata: ")
            if data.count(b"\n") == 2 * len(found):
                return found
        return self._by_line(data)

    def _by_line(self, data: bytes) -> list[bytes]:
        if self._after_cr or CR in data:
            data = self._with_lf(data)
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines and self._rest:
            lines[0] = self._joined() + lines[0]
        if lines and not self._begun:
            self._begun = True
            lines[0] = lines[0].removeprefix(BOM_UTF8)
        events: list[bytes] = []
        pending = self._data
        for line in lines:
            if line.startswith(b"data: "):
                pending.append(line[6:])
                self._size += len(line)
            elif not line:
                if pending:
                    events.append(pending[0] if len(pending) == 1 else b"\n".join(pending))
                    pending.clear()
                    self._size = 0
            elif line.startswith(b"data:"):
                pending.append(line[5:])
                self._size += len(line)
            elif self.comment is not None and line.startswith(b":"):
                self.comment(line)
        if rest:
            self._rest.append(rest)
            self._size += len(rest)
        if self._size > self._max:
            raise EventTooLarge(f"a server-sent event exceeds {self._max} bytes")
        return events

    def _with_lf(self, data: bytes) -> bytes:
        """Writes every line end as LF."""
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if CR in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return data

    def _joined(self) -> bytes:
        """Removes and returns the unfinished line."""
        line = b"".join(self._rest)
        self._rest.clear()
        self._size -= len(line)
        return line

    @property
    def between(self) -> bool:
        """Whether the reader stands between two events."""
        return not self._size

    def finish(self) -> list[bytes]:
        """Returns the event that the end of the stream completes: some servers leave out the last blank line."""
        self._after_cr = False
        return self.feed(b"\n\n") if self._size else []


def read(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The `data` of each event in a stream of bytes. Raises EventTooLarge."""
    reader = SSEReader()
    for piece in pieces:
        yield from reader.feed(piece)
    yield from reader.finish()


def named(name: str, payload: bytes, id: int | None = None) -> bytes:
    """An event with a name, and an id from which a client resumes."""
    head = b"" if id is None else b"id: %d\n" % id
    return b"%bevent: %b\ndata: %b\n\n" % (head, name.encode(), payload)


def event(payload: bytes) -> bytes:
    """One event with this data, which must not contain a line break."""
    return b"data: " + payload + b"\n\n"


def events(payloads: list[bytes]) -> bytes:
    """One event for each payload."""
    return b"data: " + b"\n\ndata: ".join(payloads) + b"\n\n" if payloads else b""


class Sink(Protocol):
    """A client that accepts events without waiting."""

    @property
    def ready(self) -> bool:
        """False while the client lags, and once it has left."""
        ...

    def push(self, data: bytes) -> None:
        """Sends server-sent events."""
        ...

"""Server-sent events without I/O: bytes in, the data of each event out (WHATWG HTML §9.2)."""

from __future__ import annotations

import re

from gateway.errors import ProviderInvalidResponse

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""One event is one chunk of an answer; a server that sends none in so many bytes doesn't speak the format."""

_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")


class EventReader:
    """Any split of the bytes gives the same events. Comments and fields other than `data` are passed over."""

    def __init__(self) -> None:
        self._held = b""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The events that are complete now. Raises ProviderInvalidResponse past MAX_EVENT_BYTES."""
        # A last "\r" is held back: it may be the first half of "\r\n".
        *lines, self._held = _LINE_END.split(self._held + data)
        events = []
        for line in lines:
            if not line:
                events += self.flush()
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
                self._size += len(line)
        if self._size + len(self._held) > MAX_EVENT_BYTES:
            raise ProviderInvalidResponse(f"the stream holds an event of more than {MAX_EVENT_BYTES} bytes")
        return events

    def finish(self) -> list[bytes]:
        """What the end of the stream completes: servers leave out the last blank line."""
        return [*self.feed(b"\n"), *self.flush()]

    def flush(self) -> list[bytes]:
        data, self._data, self._size = self._data, [], 0
        return [b"\n".join(data)] if data else []

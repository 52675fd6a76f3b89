"""Reads JSON lines of bounded length from a stream of bytes."""

from __future__ import annotations

from typing import Literal

TOO_LONG: Literal["too long"] = "too long"


class LineReader:
    """Takes bytes in any split; returns each finished line without its newline.

    Returns TOO_LONG for a line longer than `limit` bytes (newline included) as soon as it exceeds them, and drops the
    rest of that line. Never buffers more than `limit` bytes.
    """

    __slots__ = ("_limit", "_parts", "_size", "_skipping")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes | Literal["too long"]]:
        lines: list[bytes | Literal["too long"]] = []
        *ended, rest = data.split(b"\n")
        for piece in ended:
            if self._skipping:
                self._skipping = False
            elif self._size + len(piece) + 1 > self._limit:
                lines.append(TOO_LONG)
            else:
                lines.append(b"".join((*self._parts, piece)))
            self._parts.clear()
            self._size = 0
        if rest and not self._skipping:
            self._size += len(rest)
            if self._size >= self._limit:
                lines.append(TOO_LONG)
                self._skipping = True
                self._parts.clear()
                self._size = 0
            else:
                self._parts.append(rest)
        return lines

    def finish(self) -> bytes | None:
        """Returns the last line if it has no newline; None otherwise."""
        rest = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        return rest or None

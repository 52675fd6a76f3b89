"""Reads a form of `multipart/form-data` (RFC 7578) piece by piece, in time that is linear in its length.

An engine's server loads this by path, so it stands on the standard library and python_multipart alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from python_multipart.multipart import parse_options_header

MAX_PARTS = 64
MAX_HEAD, MAX_FIELD = 8192, 65536
"""Bytes of a part's headers, and of its value if it isn't a file."""
MAX_BOUNDARY = 200
MAX_OPTIONS = 64
"""Semicolons of a header: each costs a microsecond, thirty times as much as another byte."""


class BadForm(ValueError):
    """The message says what is wrong with the form."""


class Field(NamedTuple):
    """A value that is no file, read as UTF-8 whatever the form declares."""

    name: str
    value: str


class FileStart(NamedTuple):
    """The head of a file; its pieces follow as bytes. kind: its Content-Type, "" if it names none."""

    name: str
    filename: str
    kind: str


Event = Field | FileStart | bytes


class FormReader:
    """Feed it a form in pieces of any size; it returns the fields and the pieces of files as they complete."""

    def __init__(self, content_type: str) -> None:
        """Raises BadForm unless the type is multipart/form-data with a boundary."""
        kind, options = _options(content_type.encode("latin-1", "replace"))
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not 0 < len(boundary) <= MAX_BOUNDARY:
            raise BadForm("its Content-Type must be multipart/form-data with a boundary")
        self._mark = b"\r\n--" + boundary
        # The first boundary needs no line break before it.
        self._rest = b"\r\n"
        self._inside: Field | FileStart | None = None
        """The part whose content comes; None between parts."""
        self._value = bytearray()
        self._names: set[str] = set()
        self._parts = 0
        self._begun = self._ended = False

    def feed(self, data: bytes) -> list[Event]:
        """Raises BadForm."""
        events: list[Event] = []
        data, at = self._rest + data, 0
        while not self._ended:
            if self._begun and self._inside is None:
                after = self._head(data, at, events)
            else:
                after = self._content(data, at, events)
            if after is None:
                break
            at = after
        # A boundary may be split between two pieces.
        held = len(data) - at if self._begun and self._inside is None else min(len(data) - at, len(self._mark) - 1)
        self._take(data[at : len(data) - held], events)
        self._rest = b"" if self._ended else data[len(data) - held :]
        return events

    def finish(self) -> None:
        """Raises BadForm if the end of the form is missing."""
        if not self._ended:
            raise BadForm("its last boundary is missing")

    def _content(self, data: bytes, at: int, events: list[Event]) -> int | None:
        """Where the boundary ends that ends the present part, or what comes before the first; None: not yet there."""
        found = data.find(self._mark, at)
        if found < 0:
            return None
        self._take(data[at:found], events)
        if isinstance(self._inside, Field):
            events.append(Field(self._inside.name, _text(bytes(self._value))))
        self._inside, self._begun = None, True
        return found + len(self._mark)

    def _take(self, content: bytes, events: list[Event]) -> None:
        """A piece of the present part's content; it isn't kept where no part has begun."""
        if isinstance(self._inside, FileStart):
            if content:
                events.append(content)
        elif self._inside is not None:
            self._value += content
            if len(self._value) > MAX_FIELD:
                raise BadForm(f"the field {self._inside.name[:100]!r} has more than {MAX_FIELD} bytes")

    def _head(self, data: bytes, at: int, events: list[Event]) -> int | None:
        """Where the headers end that begin behind a boundary; None: not yet there."""
        if data.startswith(b"--", at):
            self._ended = True
            return None
        end = data.find(b"\r\n\r\n", at, at + MAX_HEAD)
        if end < 0:
            if len(data) - at >= MAX_HEAD:
                raise BadForm(f"a field's headers don't end within {MAX_HEAD} bytes")
            return None
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise BadForm(f"it has more than {MAX_PARTS} fields")
        self._inside = part = _part(data[at:end])
        if part.name in self._names and not part.name.endswith("[]"):
            raise BadForm(f"the field {part.name[:100]!r} is there twice")
        self._names.add(part.name)
        self._value.clear()
        if isinstance(part, FileStart):
            events.append(part)
        return end + 4


def _part(head: bytes) -> Field | FileStart:
    headers = _headers(head)
    named = _options(headers.get(b"content-disposition", b""))[1]
    if b"name" not in named:
        raise BadForm("a field has no name")
    name = _text(named[b"name"])
    if b"filename" not in named:
        return Field(name, "")
    return FileStart(name, _text(named[b"filename"]), _text(headers.get(b"content-type", b"")))


def _options(header: bytes) -> tuple[bytes, Mapping[bytes, bytes]]:
    if header.count(b";") > MAX_OPTIONS:
        raise BadForm(f"a header has more than {MAX_OPTIONS} semicolons")
    return parse_options_header(header)


def _headers(head: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        found.setdefault(name.strip().lower(), value.strip())
    return found


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadForm("its fields must be UTF-8") from None

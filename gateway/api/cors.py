"""Which web pages may use the gateway from a browser: those whose origins config.yaml names, else none."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.api.chat import ASGIClient
from gateway.asgi import Headers, Message, Scope, Send

METHODS = b"GET, POST, PUT, PATCH, DELETE, OPTIONS"
MAX_AGE = b"600"
EXPOSED = (
    b"x-ctxgate-mended, x-ctxgate-healed, x-ctxgate-enforced, x-ctxgate-fallback, x-ctxgate-estimate, "
    b"x-ctxgate-dropped-tools, retry-after"
)


class Cors:
    def __init__(self, origins: Sequence[str]) -> None:
        self._any = "*" in origins
        self._origins = {origin.encode() for origin in origins}

    def allowed(self, scope: Scope) -> bytes | None:
        """The request's origin, if it is one that may."""
        origin = _header(scope["headers"], b"origin")
        return origin if origin and (self._any or origin in self._origins) else None

    async def preflight(self, scope: Scope, origin: bytes, send: Send) -> bool:
        """Answers the browser's question before a request, if this is one; it carries no key."""
        headers: Headers = scope["headers"]
        if scope["method"] != "OPTIONS" or not _header(headers, b"access-control-request-method"):
            return False
        answer = [
            *_grant(origin),
            (b"access-control-allow-methods", METHODS),
            (b"access-control-allow-headers", _header(headers, b"access-control-request-headers") or b"*"),
            (b"access-control-max-age", MAX_AGE),
        ]
        if _header(headers, b"access-control-request-private-network") == b"true":
            answer.append((b"access-control-allow-private-network", b"true"))
        await ASGIClient(send).whole(204, answer, b"")
        return True


def granting(send: Send, origin: bytes) -> Send:
    """Lets the page of that origin read the answer."""

    async def granted(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [
                *message["headers"],
                *_grant(origin),
                (b"access-control-expose-headers", EXPOSED),
            ]
        await send(message)

    return granted


def _grant(origin: bytes) -> Headers:
    return ((b"access-control-allow-origin", origin), (b"vary", b"Origin"))


def _header(headers: Headers, name: bytes) -> bytes:
    return next((value for known, value in headers if known == name), b"")

"""A request that a model's server gets as it is, and the answer that the client gets as it is."""

from __future__ import annotations

from collections.abc import Callable

from gateway.backends import Forward, Forwarded
from gateway.features.media.forwarded import Asked, forwarded, pieces
from gateway.server.asgi import Headers, Receive, Scope, Send

GUARDS = ((b"x-content-type-options", b"nosniff"), (b"content-security-policy", b"sandbox"))
"""No browser shows an answer as a page of the gateway, whose scripts could then use it."""
KEPT = (b"content-type", b"content-length", b"content-disposition", b"cache-control")


class Passed:
    """Sends the request on and the answer back, at the pace of the slower side; an ASGI application.

    ended: called once the request has been answered, or given up.
    """

    def __init__(self, asked: Asked, sent: Forward, ended: Callable[[], None] = lambda: None) -> None:
        self._asked = asked
        self._sent = sent
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with forwarded(self._asked, self._sent) as (answer, meter):
                await send(
                    {"type": "http.response.start", "status": answer.status, "headers": [*_headers(answer), *GUARDS]}
                )
                if scope["method"] != "HEAD":
                    async for piece in pieces(self._asked, answer, meter):
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._ended()


def _headers(answer: Forwarded) -> Headers:
    return [(name, value) for name in KEPT if (value := answer.headers.get(name)) is not None]

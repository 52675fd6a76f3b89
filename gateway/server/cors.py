"""Lets web pages of the origins in config.yaml use the gateway from a browser."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
EXPOSED = (
    *("x-ctxgate-mended", "x-ctxgate-healed", "x-ctxgate-enforced", "x-ctxgate-fallback", "x-ctxgate-estimate"),
    *("x-ctxgate-dropped-tools", "retry-after"),
)


def allowing(origins: Sequence[str], app: ASGIApp) -> ASGIApp:
    """`app` for pages of these origins, or with `*` of any. Answers preflight requests itself: they carry no key."""
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=METHODS,
        allow_headers=("*",),
        allow_private_network=True,
        expose_headers=EXPOSED,
    )

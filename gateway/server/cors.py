"""Which web pages may use the gateway from a browser: those whose origins config.yaml names, else none."""

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
    """`app` for pages of these origins (`*`: of any), too. A browser's question before a request carries no key, and
    is answered here."""
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=METHODS,
        allow_headers=("*",),
        allow_private_network=True,
        expose_headers=EXPOSED,
    )

"""Limits of request bodies: the length of each, the time that it may take, and the memory or disk of all together."""

from __future__ import annotations

import asyncio
import ctypes
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from gateway.errors import ProviderInvalidRequest, ProviderUnavailable
from gateway.observe.shares import has_share
from gateway.server.asgi import LIMITED_BY, ClientGone, Headers, Receive, Scope, check_head, too_large
from gateway.server.principal import LOCAL, Principal

BODY_SECONDS = 60.0
"""Time limit for each piece of a body, and for the whole, plus a second for every BYTES_PER_SECOND received."""
BYTES_PER_SECOND = 128 * 1024
SMALL = 64 * 1024
"""Shorter bodies aren't counted: the limit on connections limits them."""

M_MMAP_THRESHOLD = -3
"""Of glibc's `mallopt`."""

SCOPE_KEY = "ctxgate.body"
"""Where a `Body` is in an ASGI scope."""


class Bodies:
    """The bodies in memory, or elsewhere, at most `maximum` bytes together. held: how many there are. by: of each
    tenant.

    where, each, all: for errors: where they are, and the settings that limit each and all together.
    """

    def __init__(
        self, maximum: int, where: str = "in memory", each: str = LIMITED_BY, all: str = "server.max_bodies_bytes"
    ) -> None:
        self.maximum = maximum
        self.where = where
        self.each = each
        self.all = all
        self.held = 0
        self.by: Counter[str] = Counter()


class Body:
    """One request's body, from its first piece until the request is answered; then `close` it.

    principal: whose share of the memory it takes; set it before the body is read.
    """

    __slots__ = ("_began", "_bodies", "_held", "_limit", "_size", "content", "principal")

    def __init__(self, bodies: Bodies, limit: int, principal: Principal = LOCAL) -> None:
        self.principal = principal
        self.content = b""
        """All of it, once `read_body` has it."""
        self._bodies = bodies
        self._limit = limit
        self._began = asyncio.get_running_loop().time()
        self._size = self._held = 0

    def announced(self, headers: Headers) -> None:
        """Raises what `check_head` raises."""
        check_head(headers, self._limit, self._bodies.each)

    def has(self, size: int) -> None:
        """Counts received bytes. Raises ProviderInvalidRequest (413) if they are too many for one body, and
        ProviderUnavailable if it is for all together."""
        bodies = self._bodies
        if size > self._limit:
            raise too_large(self._limit, bodies.each)
        self._size = size
        if size > SMALL:
            more = size - self._held
            mine = bodies.by[self.principal.tenant] + more
            if not has_share(self.principal.tenant, mine, bodies.held + more, bodies.maximum):
                raise ProviderUnavailable(
                    f"the request bodies {bodies.where} exceed {bodies.maximum} bytes ({bodies.all}), or this tenant's "
                    "share",
                    code="too_many_bodies",
                    retry_after=1,
                )
            bodies.held += more
            bodies.by[self.principal.tenant] = mine
            self._held = size

    def forget(self) -> None:
        """Keeps no content; what is made of it still counts."""
        self.content = b""

    def close(self) -> None:
        """Idempotent."""
        self._bodies.held -= self._held
        self._bodies.by[self.principal.tenant] -= self._held
        self._held = 0

    @asynccontextmanager
    async def patience(self) -> AsyncIterator[None]:
        """Raises ProviderInvalidRequest (408) if the next piece doesn't come in time."""
        gone = asyncio.get_running_loop().time() - self._began
        left = min(BODY_SECONDS, BODY_SECONDS + self._size / BYTES_PER_SECOND - gone)
        try:
            async with asyncio.timeout(left):
                yield
        except TimeoutError:
            message = f"the request body comes too slowly: {self._size} bytes within {gone + left:.0f} s"
            raise ProviderInvalidRequest(message, code="request_timeout", status=408) from None


def return_large_blocks() -> None:
    """Has the C library give each block of 1 MB or more back to the system as soon as it is free.

    glibc stops doing so for sizes that were freed once (up to 32 MB): the next large body is then copied about on the
    heap, and took 4.5 times its size where 3 suffice. Other C libraries have no such setting.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1024 * 1024)


async def read_body(scope: Scope, receive: Receive) -> bytes:
    """The whole body. Raises what the `Body` of the scope raises, and ClientGone."""
    body: Body = scope[SCOPE_KEY]
    body.content = b"".join([piece async for piece in pieces(body, scope, receive)])
    return body.content


async def pieces(body: Body, scope: Scope, receive: Receive) -> AsyncIterator[bytes]:
    """What comes of the body, as it comes. Raises what `body` raises, and ClientGone."""
    body.announced(scope["headers"])
    size = 0
    while True:
        async with body.patience():
            message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        body.has(size)
        yield part
        if not message.get("more_body"):
            return

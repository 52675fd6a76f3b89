"""Forwards requests to the gateway that holds a claim, such as the one on rooms, and passes its answers back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from gateway.errors import ProviderUnavailable
from gateway.store import Claimed

FORWARDED = "ctxgate-forwarded"
"""A header of forwarded requests: a gateway that gets one answers or refuses it, and never forwards it again."""
PASSED = ("authorization", "x-api-key", "content-type", "last-event-id", "accept", "user-agent")
RETURNED = ("content-type", "cache-control", "retry-after", "x-accel-buffering")
TAKE_OVER_SECONDS = 15.0
"""How long a request waits while the claim of a dead gateway moves to another."""
AGAIN_SECONDS = 0.1
SILENT_SECONDS = 90.0
"""Streams send keep-alive comments far more often."""


class Forward:
    def __init__(self) -> None:
        self._http = httpx.AsyncClient(
            trust_env=False, timeout=httpx.Timeout(SILENT_SECONDS, connect=2.0), follow_redirects=False
        )

    async def __call__(self, handler: Callable[[Any], Awaitable[Any]], request: Any) -> Any:
        """The handler's response, or that of the gateway that holds the claim.

        Raises what the handler raises, and ProviderUnavailable if the holder dies in between: whether it did what the
        request asks is unknown then.
        """
        deadline = time.monotonic() + TAKE_OVER_SECONDS
        while True:
            try:
                return await handler(request)
            except Claimed as error:
                if FORWARDED in request.headers or time.monotonic() >= deadline:
                    raise
                if error.holder.startswith("http"):
                    try:
                        return await self._passed(error.holder, request)
                    except (httpx.ConnectError, httpx.ConnectTimeout):
                        pass  # it or its machine died, and its claim is about to end
                    except httpx.TransportError as lost:
                        message = f"the gateway {error.holder} went away while it answered"
                        raise ProviderUnavailable(message, code="store_claimed", retry_after=1) from lost
            await asyncio.sleep(AGAIN_SECONDS)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _passed(self, holder: str, request: Any) -> Any:
        headers = {name: request.headers[name] for name in PASSED if name in request.headers}
        scope = request.scope
        # As the client wrote it: decoded, a %23 or %3F would end the path.
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        sent = self._http.build_request(
            *(request.method, holder),
            headers={**headers, FORWARDED: "1"},
            content=await request.body(),
            extensions={"target": target},
        )
        return _Answer(await self._http.send(sent, stream=True))


class _Answer:
    """Sends the holder's answer as it arrives. If the holder dies, the connection breaks off mid-answer."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        response = self._response
        headers = [(name.encode(), value.encode()) for name, value in response.headers.items() if name in RETURNED]
        try:
            await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
            try:
                async for chunk in response.aiter_bytes():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except httpx.TransportError:
                return
            await send({"type": "http.response.body", "body": b""})
        finally:
            await response.aclose()

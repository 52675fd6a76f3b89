"""Runs one request of a batch as if its owner had sent it over HTTP, without a connection."""

from __future__ import annotations

import asyncio
import logging

from gateway.api.dispatch import Dispatch
from gateway.errors import GatewayError
from gateway.features.batches.objects import Endpoint
from gateway.server.asgi import Message, Scope
from gateway.server.bodies import SCOPE_KEY as BODY_KEY
from gateway.server.bodies import Bodies, Body
from gateway.server.client import INTERNAL
from gateway.server.principal import Principal
from gateway.services import Services
from gateway.wire.chat import encode

AGENT = b"ctxgate-batch"
"""The program name under which the usage of batches is recorded."""
BUSY = 429
"""The status of a request that only has to wait: it is retried for as long as its batch lasts."""
AGAIN = (502, 503, 504)
"""Statuses after which the same request may succeed."""

log = logging.getLogger("ctxgate")


async def ask(services: Services, principal: Principal, endpoint: Endpoint, body: bytes) -> tuple[int, float, bytes]:
    """Returns the status, the seconds of Retry-After, and the answer, which is JSON."""
    request = _Exchange(body)
    scope: Scope = {
        "type": "http",
        "method": "POST",
        "path": endpoint,
        "query_string": b"",
        "http_version": "1.1",
        "headers": [(b"content-type", b"application/json")],
        BODY_KEY: Body(Bodies(len(body)), len(body)),
    }
    try:
        await services.shared(Dispatch).answer_as(principal, AGENT, scope, request.receive, request.send)
    except GatewayError as error:
        return error.status, error.retry_after or 0.0, encode(error.body())
    except Exception:
        log.exception("a request of a batch failed")
        return INTERNAL.status, 0.0, encode(INTERNAL.body())
    return request.status, request.retry_after, bytes(request.answer)


class _Exchange:
    """Both sides of the ASGI interface for one request."""

    def __init__(self, body: bytes) -> None:
        self.status = INTERNAL.status
        self.retry_after = 0.0
        self.answer = bytearray()
        self._body: bytes | None = body

    async def receive(self) -> Message:
        body, self._body = self._body, None
        if body is None:
            await asyncio.Event().wait()  # this client never leaves: it is cancelled
        return {"type": "http.request", "body": body}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = dict(message["headers"]).get(b"retry-after", b"0")
            self.retry_after = float(given) if given.isdigit() else 0.0
        else:
            self.answer += message.get("body", b"")

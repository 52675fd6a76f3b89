"""WebSocket connections: uvicorn's protocol, with the bounds that HTTP connections have here.

Imported with the first client that asks for one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode
from websockets.server import ServerProtocol

from gateway.errors import GatewayError
from gateway.server.bodies import Bodies, Body

SCOPE_KEY = "ctxgate.websocket"
"""Where the connection is in an ASGI scope."""
SLOW_SECONDS = 60.0
"""How long a client may read nothing of what is ready for it."""


class WebSocket(WebSocketsSansIOProtocol):
    """One connection. Messages come uncompressed, each at most `server.max_body_bytes` long.

    idle_since: since when nothing is asked, by the loop's clock; None while something is. The application sets it.
    ending: the server ends: the application closes the connection after the present answer.
    """

    def __init__(self, *, bodies: Bodies, max_body: int, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        # Not uvicorn's logger, which would get a line for each connection.
        self.logger = logging.getLogger("ctxgate.websocket")
        self.conn = ServerProtocol(max_size=max_body, logger=self.logger)
        self.idle_since: float | None = self.loop.time()
        self.ending = False
        self._body = Body(bodies, max_body)
        self._unread = 0
        """Bytes of an incomplete message."""
        self._stalled: asyncio.TimerHandle | None = None

    @property
    def spare(self) -> tuple[int, float] | None:
        """See `gateway.server.connections.Connection`."""
        if self.transport.is_closing():
            return 0, 0.0
        return None if self.idle_since is None else (2, self.idle_since)

    def evict(self) -> None:
        self.transport.abort()

    def shutdown(self) -> None:
        self.ending = True
        if self.idle_since is not None:
            super().shutdown()

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        try:
            self._body.has(self._unread)
        except GatewayError as error:
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG if error.status == 413 else CloseCode.TRY_AGAIN_LATER)
            self.handle_parser_exception()
            return
        super().data_received(data)

    def send_receive_event_to_app(self) -> None:
        self._unread = 0
        self._body.close()
        super().send_receive_event_to_app()

    async def run_asgi(self) -> None:
        scope: Any = self.scope
        scope[SCOPE_KEY] = self
        await super().run_asgi()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(SLOW_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._body.close()
        if self._stalled is not None:
            self._stalled.cancel()
        super().connection_lost(exc)

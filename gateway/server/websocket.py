"""WebSocket connections: uvicorn's protocol, with the bounds that HTTP connections have here.

Imported with the first client that asks for one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame
from websockets.server import ServerProtocol

from gateway.errors import GatewayError
from gateway.server.bodies import Bodies, Body
from gateway.server.principal import Principal

SCOPE_KEY = "ctxgate.websocket"
"""Where the connection is in an ASGI scope."""
SLOW_SECONDS = 60.0
"""How long a client may read nothing of what is ready for it."""
FRAMES, FRAMES_PER_SECOND, BYTES_PER_FRAME = 256, 50, 512
"""How many frames may come at once, and what allows further ones: time, and what frames hold. Each takes some ten
microseconds, though it may be empty: a ping, a pong, or a fragment of a message."""
PIECE, AT_ONCE = 4096, 128
"""Bytes to parse at a time, and frames after which others have their turn."""


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
        self._bodies, self._max_body = bodies, max_body
        self._body = Body(bodies, max_body)
        self._unread = 0
        """Bytes of an incomplete message."""
        self._held = b""
        """What has come and is not parsed yet."""
        self._turn: asyncio.Handle | None = None
        """Parses the rest of it."""
        self._allowed, self._allowed_at = float(FRAMES), self.loop.time()
        """How many frames may come, since when."""
        self._parsed = 0
        """Frames of this turn."""
        self._stalled: asyncio.TimerHandle | None = None

    @property
    def closing_rank(self) -> tuple[int, float] | None:
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
        self._held += data
        if self._turn is None and not self.read_paused:
            self._parse()
        if self._held and not self.transport.is_closing():
            self.transport.pause_reading()

    def _parse(self) -> None:
        """Parses what has come until the application has to take a message, or it is the others' turn."""
        self._turn, self._parsed, at = None, 0, 0
        data, self._held = self._held, b""
        while at < len(data) and not self.read_paused and self._parsed < AT_ONCE and not self.transport.is_closing():
            piece = data[at : at + PIECE]
            at += PIECE
            self._unread += len(piece)
            try:
                self._body.has(self._unread)
            except GatewayError as error:
                self._fail(CloseCode.MESSAGE_TOO_BIG if error.status == 413 else CloseCode.TRY_AGAIN_LATER)
                return
            super().data_received(piece)
        if self.transport.is_closing():
            return
        self._held = data[at:]
        if self._held and not self.read_paused:
            self._turn = self.loop.call_soon(self._parse)
        elif not self._held and not self.read_paused:
            self.transport.resume_reading()

    def handle_events(self) -> None:
        frames = [event for event in self.conn.events if isinstance(event, Frame)]
        now = self.loop.time()
        self._allowed += (now - self._allowed_at) * FRAMES_PER_SECOND - len(frames)
        self._allowed = min(FRAMES, self._allowed + sum(len(frame.data) for frame in frames) / BYTES_PER_FRAME)
        self._allowed_at = now
        self._parsed += len(frames)
        if self._allowed < 0:
            self._fail(CloseCode.POLICY_VIOLATION, "too many frames for what they hold")
        else:
            super().handle_events()
            for frame in frames:
                frame.data = b""  # the parser keeps the last one, which may be large, until another comes

    def _fail(self, code: CloseCode, why: str = "") -> None:
        if self.conn.close_sent is None:
            self.conn.fail(code, why)
        if self.conn.close_sent is None:  # there was no handshake
            self.transport.abort()
        else:
            self.handle_parser_exception()

    async def receive(self) -> Any:
        message = await super().receive()
        if self._held and not self.read_paused and self._turn is None:
            self._turn = self.loop.call_soon(self._parse)
        return message

    def send_receive_event_to_app(self) -> None:
        self._unread = 0
        self._body.close()
        super().send_receive_event_to_app()

    def belongs_to(self, principal: Principal) -> None:
        """Whose share of the memory its messages take."""
        self._body.close()
        self._body = Body(self._bodies, self._max_body, principal)

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
        self._held = b""
        for timer in (self._stalled, self._turn):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

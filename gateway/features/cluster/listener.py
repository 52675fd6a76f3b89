"""What listens beside an engine for the gateways of a cluster."""

from __future__ import annotations

import asyncio
import ssl


class Listener:
    """A TCP server. `serve` answers one connection; `open` has the connections for `close` to end."""

    def __init__(self) -> None:
        self.open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, tls: ssl.SSLContext | None) -> int:
        """Returns the port."""
        self._server = await asyncio.start_server(self._connected, host, 0, ssl=tls)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        """Ends its connections, too."""
        if self._server is not None:
            self._server.close()
        for writer in self.open:
            writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.add(writer)
        try:
            await self.serve(reader, writer)
        finally:
            self.open.discard(writer)
            writer.close()

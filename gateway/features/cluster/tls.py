"""TLS in front of any engine, since the embedded one has none. The engine itself listens only on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl

from gateway.errors import ProviderUnavailable
from gateway.features.cluster.listener import Listener
from gateway.features.cluster.settings import ClusterTLS

PART = 64 * 1024

log = logging.getLogger("ctxgate.cluster")


def context(tls: ClusterTLS) -> ssl.SSLContext:
    """For servers. Raises ProviderUnavailable."""
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        made.load_cert_chain(tls.cert_file, tls.key_file)
    except OSError as error:  # ssl's own, too
        raise ProviderUnavailable(
            f"cluster.tls: {socket.gethostname()} can't serve with {tls.cert_file} and {tls.key_file}:"
            f" {error.strerror or error}"
        ) from error
    return made


class Front(Listener):
    """Forwards the bytes of TLS connections to a port of this machine, and back."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            behind, to_engine = await asyncio.open_connection("127.0.0.1", self._port, limit=PART)
            try:
                async with asyncio.TaskGroup() as both:
                    there = both.create_task(_pump(reader, to_engine))
                    back = both.create_task(_pump(behind, writer))
                    # When one side closes, close the other too: HTTP has no half-closed connections.
                    await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
                    there.cancel()
                    back.cancel()
            finally:
                to_engine.close()
        except OSError as error:
            log.debug("TLS: the engine at port %d: %s", self._port, error)


async def _pump(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    """Until either side ends."""
    with contextlib.suppress(OSError):
        while data := await source.read(PART):
            to.write(data)
            await to.drain()

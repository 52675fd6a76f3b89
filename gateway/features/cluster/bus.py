"""Messages between gateways and the placer, over PostgreSQL's LISTEN and NOTIFY."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import count

import msgspec
import psycopg
from psycopg.conninfo import make_conninfo

from gateway.errors import Backoff
from gateway.features.cluster.tables import CHANNEL
from gateway.features.cluster.values import Message, decode

MAX_BYTES = 7900
"""PostgreSQL takes payloads below 8000 bytes."""
RECONNECT = Backoff(0.25, 5.0)
CONNECT_SECONDS = 5
SEND_SECONDS = 5.0

log = logging.getLogger("ctxgate")


class Bus:
    """heard: called with each message, our own included. connected: called after each connect: earlier messages
    may be lost, so read the tables again; its failure counts as one of the connection."""

    def __init__(self, store: str, heard: Callable[[Message], None], connected: Callable[[], Awaitable[None]]) -> None:
        self._conninfo = make_conninfo(
            store,
            connect_timeout=CONNECT_SECONDS,
            application_name="ctxgate, cluster",
            # Without these, a connection over a dead network would seem alive for hours.
            keepalives_idle=5,
            keepalives_interval=2,
            keepalives_count=3,
            tcp_user_timeout=10_000,
        )
        self._heard = heard
        self._connected = connected
        self._sending: psycopg.AsyncConnection | None = None
        self._one_at_a_time = asyncio.Lock()
        self.alive = False
        """Whether the last connect or message succeeded."""

    async def run(self) -> None:
        """Listens forever, through restarts of PostgreSQL."""
        for failures in count(1):
            try:
                await self._listen()
            except (psycopg.Error, OSError, TimeoutError) as error:
                if self.alive or failures == 1:
                    log.warning("cluster: PostgreSQL is down, known engines keep working: %s", error)
                self.alive = False
            await asyncio.sleep(RECONNECT.delay(min(failures, 8)))

    async def send(self, data: bytes) -> bool:
        """False if PostgreSQL is away: the message is lost."""
        async with self._one_at_a_time:
            try:
                async with asyncio.timeout(SEND_SECONDS):
                    if self._sending is None:
                        self._sending = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)
                        # A message is of now: nobody needs it on PostgreSQL's disk.
                        await self._sending.execute("SET synchronous_commit = off")
                    await self._sending.execute("SELECT pg_notify(%s, %s)", (CHANNEL, data.decode()))
            except (psycopg.Error, OSError, TimeoutError) as error:
                log.debug("cluster: a message is lost: %s", error)
                await self._hang_up()
                return False
            return True

    async def aclose(self) -> None:
        await self._hang_up()

    async def _hang_up(self) -> None:
        connection, self._sending = self._sending, None
        if connection is not None:
            await connection.close()

    async def _listen(self) -> None:
        connection = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)
        async with connection:
            await connection.execute(f"LISTEN {CHANNEL}")
            await self._connected()
            self.alive = True
            async for notification in connection.notifies():
                try:
                    message = decode(notification.payload)
                except msgspec.DecodeError:
                    continue  # of a newer version
                self._heard(message)

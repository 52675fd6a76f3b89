"""Ports for servers that tests start as processes, and ports without a server."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

EACH = 2000


def _mine() -> Iterator[int]:
    """The ports of this worker of pytest-xdist, below those that systems give to whoever asks for any."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first, start = 12_000 + worker % 10 * EACH, random.randrange(EACH)
    while True:
        yield first + start % EACH
        start += 1


_ports = _mine()


def free_port() -> int:
    """One that nobody listens on, and that nobody takes before its server does."""
    for port in _ports:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("the ports never end")


@asynccontextmanager
async def reaching_themselves() -> AsyncIterator[int]:
    """A port that nobody listens on, and that each connection to it gets as its own: what the system does with one in
    thousands."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    loop = asyncio.get_running_loop()
    connect = loop.create_connection

    async def from_the_port(*args: Any, **options: Any) -> Any:
        return await connect(*args, **{**options, "local_addr": ("127.0.0.1", port)})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "create_connection", from_the_port)
        yield port

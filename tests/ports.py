"""Ports for servers that tests start as processes."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator

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

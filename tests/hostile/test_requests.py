"""Generated hostile requests: the gateway answers what can be answered, never with a 500, and serves others meanwhile.

`CTXGATE_TEST_REQUESTS=10000 pytest tests/hostile/test_requests.py` sends as many; CTXGATE_TEST_SEED makes others.
"""

from __future__ import annotations

import os
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor

from tests.hostile.conftest import Unharmed
from tests.hostile.requests import Hostile, generate
from tests.hostile.running import Gateway, Upstream
from tests.patience import PATIENCE

COUNT = int(os.environ.get("CTXGATE_TEST_REQUESTS", "300"))
SEED = int(os.environ.get("CTXGATE_TEST_SEED", "15"))
AT_ONCE = 8
WARM_UP = 100
"""Requests before those that are watched: what the first of a kind loads isn't growth."""
READ_SECONDS = 0.15
"""For a request that never ends: then the client is the one that leaves."""

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


def send(gateway: Gateway, hostile: Hostile) -> tuple[list[int], bytes]:
    """The statuses that came, and all of it."""
    answer = b""
    with gateway.connect() as one:
        one.settimeout(PATIENCE)
        try:
            for piece in hostile.pieces:
                one.sendall(piece)
                if hostile.drip:
                    time.sleep(0.005)
            if hostile.end == "half-close":
                one.shutdown(socket.SHUT_WR)
            if hostile.end in ("read", "half-close"):
                one.settimeout(READ_SECONDS)
                while part := one.recv(65536):
                    answer += part
            elif hostile.end == "reset":
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        except OSError:
            pass  # the gateway has closed the connection, or waits for more
    return [int(status) for status in _STATUS.findall(answer)], answer


def test_generated_requests(gateway: Gateway, upstream: Upstream, unharmed: Unharmed) -> None:
    rows = [*generate(SEED, COUNT)]
    for row in generate(SEED + 1, WARM_UP):
        send(gateway, row)
    statuses: dict[int, int] = {}
    with unharmed(), ThreadPoolExecutor(AT_ONCE) as threads:
        for row, (found, answer) in zip(rows, threads.map(lambda row: send(gateway, row), rows), strict=True):
            for status in found:
                statuses[status] = statuses.get(status, 0) + 1
                assert status != 500, (row, answer[-2000:])
                assert status < 500 or status in (501, 503, 504) or b"provider_" in answer, (row, answer[-2000:])
    print(f"{COUNT} requests of seed {SEED}: {dict(sorted(statuses.items()))}")
    assert {200, 400, 403, 404, 405} <= statuses.keys()
    assert "Traceback" not in gateway.log(), gateway.log()[-5000:]
    assert gateway.chat().status == 200

"""Frames of a WebSocket that hold little and cost much."""

from __future__ import annotations

import json
import socket
import struct
from contextlib import suppress
from itertools import repeat

import pytest

from gateway.api.routes import spellings, websockets
from gateway.server.websocket import FRAMES
from tests.hostile.conftest import Unharmed
from tests.hostile.frames import CLOSE, CONTINUED, FIN, PING, PONG, TEXT, opened
from tests.hostile.running import Gateway

SIZE = 2_000_000
"""Bytes that a client sends, if it may."""
TOO_MANY = b"too many frames for what they hold"


def frame(kind: int, data: bytes = b"", *, fin: bool = True) -> bytes:
    """One with a mask of zeros, which changes nothing."""
    size = len(data)
    length = bytes([FIN | size]) if size < 126 else struct.pack("!BH", FIN | 126, size)
    return bytes([kind | (FIN if fin else 0)]) + length + bytes(4) + data


FIRST = frame(TEXT, b"{", fin=False)
FLOODS: dict[str, tuple[bytes, bytes]] = {
    "empty fragments": (FIRST, frame(CONTINUED, fin=False)),
    "fragments of a byte": (FIRST, frame(CONTINUED, b" ", fin=False)),
    "pings": (b"", frame(PING)),
    "long pings, whose pongs nobody reads": (b"", frame(PING, b"x" * 125)),
    "pongs": (b"", frame(PONG)),
    "pings within a message": (FIRST, frame(PING)),
    "empty messages": (b"", frame(TEXT)),
    "small messages": (b"", frame(TEXT, b"{}")),
}


def sent(one: socket.socket, first: bytes, again: bytes) -> None:
    """Reads nothing before all is sent, or refused."""
    with suppress(OSError):
        one.sendall(first)
        for _ in repeat(None, SIZE // 40_000):
            one.sendall(again * (40_000 // len(again)))
        ended(one)


def ended(one: socket.socket) -> bytes:
    return b"".join(iter(lambda: one.recv(65536), b""))


@pytest.mark.parametrize("path", [next(iter(spellings(each))) for each in websockets()])
def test_floods_of_frames(path: str, gateway: Gateway, unharmed: Unharmed, subtests: pytest.Subtests) -> None:
    with opened(gateway, path) as one:  # what the first one loads isn't growth
        one.sendall(frame(TEXT, b"{}"))
        assert one.recv(1000)
    with unharmed(body=0):
        for name, (first, again) in FLOODS.items():
            with subtests.test(name), opened(gateway, path) as one:
                sent(one, first, again)
        for name, (first, again) in FLOODS.items():
            with subtests.test(f"{name}, and why"), opened(gateway, path) as one:
                one.sendall(first + again * (FRAMES + 100))
                assert struct.pack("!BBH", FIN | CLOSE, 2 + len(TOO_MANY), 1008) + TOO_MANY in ended(one)
    assert "Traceback" not in gateway.log(), gateway.log()[-5000:]


def test_a_message_in_fragments_is_read(gateway: Gateway) -> None:
    """As large ones come from some clients."""
    asked = {"type": "response.create", "model": "m", "input": "Hi " * 100_000, "store": False}
    text = json.dumps(asked).encode()
    pieces = [text[at : at + 1000] for at in range(0, len(text), 1000)]
    with opened(gateway, "/v1/responses") as one:
        one.sendall(frame(TEXT, pieces[0], fin=False))
        one.sendall(b"".join(frame(CONTINUED, piece, fin=False) for piece in pieces[1:-1]))
        one.sendall(frame(PING) + frame(CONTINUED, pieces[-1]))
        answer = b""
        while b"response.completed" not in answer:
            answer += (more := one.recv(65536))
            assert more, answer


def test_a_message_with_too_many_values(gateway: Gateway, unharmed: Unharmed) -> None:
    """Bounded as a body is: see tests/hostile/test_bodies.py."""
    text = b'{"type":"response.create","input":[%b]}' % b",".join([b'{"role":"user","content":"x"}'] * 900_000)
    with unharmed(body=len(text)), opened(gateway, "/v1/responses") as one:
        one.sendall(bytes([TEXT | FIN, FIN | 127]) + struct.pack("!Q", len(text)) + bytes(4) + text)
        assert b'"too_many_values"' in one.recv(65536)

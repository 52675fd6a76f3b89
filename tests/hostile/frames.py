"""WebSockets whose frames a test writes."""

from __future__ import annotations

import socket

from tests.hostile.running import Gateway

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
CONTINUED, TEXT, CLOSE, PING, PONG, FIN = 0x0, 0x1, 0x8, 0x9, 0xA, 0x80


def opened(gateway: Gateway, path: str, authorization: str = "") -> socket.socket:
    one = gateway.connect()
    lines = (
        f"GET {path} HTTP/1.1".encode(),
        b"Host: localhost",
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: " + KEY,
        *([f"Authorization: {authorization}".encode()] if authorization else []),
    )
    one.sendall(b"\r\n".join((*lines, b"", b"")))
    head = b""
    while b"\r\n\r\n" not in head:
        head += one.recv(1000)
    assert head.startswith(b"HTTP/1.1 101 ")
    return one

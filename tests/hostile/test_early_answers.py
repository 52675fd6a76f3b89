"""Whoever is answered before the body has come can't go on sending it."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import ExitStack, suppress

import pytest

from tests.gateway.running import running
from tests.patience import PATIENCE

PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/files", "/v1/rooms", "/api/chat", "/-/plan", "/nowhere")
MAX_BODY = 4 * 2**20
BUFFERS = 16 * 2**20
"""Bytes that the two sockets may hold."""
PIECE = b"x" * 65536


def head(path: str, framing: str, more: str = "") -> bytes:
    body = "transfer-encoding: chunked" if framing == "chunked" else "content-length: 4000000000"
    return f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{more}{body}\r\n\r\n".encode()


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, object]]:
    """The answer, which is complete, and the end of the connection behind it."""
    status = int((await reader.readline()).split()[1])
    length = 0
    while (line := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        length = int(value) if name.lower() == b"content-length" else length
    return status, json.loads(await reader.readexactly(length))


async def receive(client: socket.socket, into: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        while received := await asyncio.get_running_loop().sock_recv(client, 2**20):
            into.feed_data(received)
    into.feed_eof()


async def send_for_ever(client: socket.socket, first: bytes, piece: bytes) -> int:
    """How many bytes it could send until the connection was gone."""
    loop, sent = asyncio.get_running_loop(), 0
    await loop.sock_sendall(client, first)
    try:
        while sent < 2**32:
            await loop.sock_sendall(client, piece)
            sent += len(piece)
    except OSError:
        return sent
    raise AssertionError("it took 4 GB")


@pytest.mark.parametrize("framing", ["chunked", "content-length"])
@pytest.mark.parametrize("path", PATHS)
async def test_without_a_key_the_body_is_not_read(path: str, framing: str) -> None:
    piece = b"10000\r\n" + PIECE + b"\r\n" if framing == "chunked" else PIECE
    async with running(keys=("k",), max_body=MAX_BODY) as gateway, asyncio.timeout(PATIENCE):
        # A socket of its own: asyncio's streams lose what has come once a write fails.
        with socket.create_connection(("127.0.0.1", gateway.port)) as client:
            client.setblocking(False)
            reader = asyncio.StreamReader()
            receiving = asyncio.create_task(receive(client, reader))
            sent = await send_for_ever(client, head(path, framing), piece)
            status, answer = await read_answer(reader)
            await receiving
    assert status in (401, 404, 413)
    assert "error" in answer
    assert sent <= MAX_BODY + BUFFERS


async def test_pieces_of_a_byte_delay_nobody() -> None:
    """Eight clients without a key; the gateway doesn't even look at what they send."""
    piece = b"1\r\nx\r\n" * 10_000
    async with running(keys=("k",), max_body=MAX_BODY) as gateway, asyncio.timeout(PATIENCE):
        with ExitStack() as stack:
            clients = [stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port))) for _ in range(8)]
            for client in clients:
                client.setblocking(False)
            first = head("/v1/files", "chunked")
            sent = await asyncio.gather(*(send_for_ever(client, first, piece) for client in clients))
        assert max(sent) <= MAX_BODY + BUFFERS
        answer = await gateway.ask({}, "/v1/models", "authorization: Bearer k\r\n")
        assert answer.status in (200, 405)


@pytest.mark.parametrize("more", ["expect: 100-continue\r\n", ""])
async def test_a_client_that_waits_gets_its_answer_and_the_end(more: str) -> None:
    async with running(keys=("k",)) as gateway, asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(head("/v1/files", "content-length", more))
        status, _ = await read_answer(reader)
        assert status == 401
        assert await reader.read() == b""
        writer.close()


async def test_a_complete_body_keeps_the_connection() -> None:
    async with running(keys=("k",)) as gateway, await gateway.connect() as client:
        for _ in range(2):
            answer = await client.ask({"model": "m"}, "/v1/files")
            assert answer.status == 401

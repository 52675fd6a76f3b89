"""A client that is one socket and nothing between: what httpx would hide or mend is seen here."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from dataclasses import dataclass
from typing import Any

from tests.patience import PATIENCE


@dataclass(frozen=True)
class Answer:
    version: str
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.json["error"]
        return error

    @property
    def events(self) -> list[bytes]:
        """The payloads of a stream, `[DONE]` among them; checks its framing."""
        assert self.body.endswith(b"\n\n")
        frames = self.body.removesuffix(b"\n\n").split(b"\n\n")
        assert all(frame.startswith(b"data: ") and b"\n" not in frame for frame in frames)
        return [frame.removeprefix(b"data: ") for frame in frames]


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**20))

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        async with asyncio.timeout(PATIENCE):
            await self.writer.drain()

    async def post(self, body: dict[str, Any] | bytes, path: str = "/v1/chat/completions", head: str = "") -> None:
        await self.send(request(body, path, head))

    async def ask(self, body: dict[str, Any] | bytes, path: str = "/v1/chat/completions", head: str = "") -> Answer:
        await self.post(body, path, head)
        return await self.answer()

    async def head(self) -> tuple[str, int, dict[str, str]]:
        async with asyncio.timeout(PATIENCE):
            raw = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = raw.removesuffix("\r\n\r\n").split("\r\n")
        version, status, _ = first.split(" ", 2)
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(": ")
            assert name.lower() not in headers, f"{name} twice"
            headers[name.lower()] = value
        return version, int(status), headers

    async def answer(self, *, bodyless: bool = False) -> Answer:
        version, status, headers = await self.head()
        async with asyncio.timeout(PATIENCE):
            if bodyless or status < 200:
                body = b""
            elif headers.get("transfer-encoding") == "chunked":
                body = b"".join([part async for part in self.parts()])
            elif "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
            else:
                body = await self.reader.read()
        return Answer(version, status, headers, body)

    async def parts(self) -> Any:
        """The chunks of a chunked body, to its end."""
        while True:
            async with asyncio.timeout(PATIENCE):
                size = int((await self.reader.readuntil(b"\r\n")).strip(), 16)
                part = await self.reader.readexactly(size + 2)
            assert part.endswith(b"\r\n")
            if not size:
                return
            yield part[:-2]

    async def part(self) -> bytes:
        """The next chunk of a chunked body."""
        async for part in self.parts():
            assert isinstance(part, bytes)
            return part
        raise EOFError("the body has ended")

    async def closed(self) -> bool:
        """Whether the server has ended the connection, with nothing more to say."""
        async with asyncio.timeout(PATIENCE):
            return await self.reader.read() == b""

    def leave(self) -> None:
        """As a client that is killed: the kernel closes its socket."""
        self.writer.transport.abort()

    def reset(self) -> None:
        """Leaves with a TCP reset."""
        sock: socket.socket = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


def request(body: dict[str, Any] | bytes, path: str = "/v1/chat/completions", head: str = "") -> bytes:
    """A POST; `head` is further lines, each with its line break."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{head}"
    return f"{lines}Content-Length: {len(content)}\r\n\r\n".encode() + content


def chat(text: str = "Hi", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}

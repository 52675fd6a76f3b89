"""A web server on loopback whose answers the test writes, byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self

Handler = Callable[["Asked", asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Asked:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class Web:
    def __init__(self, host: str = "127.0.0.1", context: ssl.SSLContext | None = None) -> None:
        self.asked: list[Asked] = []
        self.pages: dict[str, bytes | Handler] = {}
        self.gone = asyncio.Event()
        """A client has closed its connection before it had its answer."""
        self._host, self._context = host, context

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self._host, 0, ssl=self._context)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"{'http' if self._context is None else 'https'}://{self._host}:{self.port}"

    def page(self, path: str, body: bytes, *headers: str, status: str = "200 OK") -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
        self.pages[path] = "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    def redirect(self, path: str, location: str, status: str = "302 Found") -> None:
        self.page(path, b"", f"Location: {location}", status=status)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.rstrip("\r\n").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            method, target, _ = first.split(" ")
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            asked = Asked(method, target, headers, body)
            self.asked.append(asked)
            answer = self.pages.get(target, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                watch = asyncio.create_task(self._watch(reader))
                await answer(asked, writer)
                watch.cancel()
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()

    async def _watch(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            if not await reader.read(1):
                self.gone.set()
                return
        self.gone.set()

"""The recorded exchanges with real engines, found beside the checkout."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.backends import Address

WIRE = Path(__file__).parents[3] / "shared/wire"

needed = pytest.mark.skipif(not WIRE.is_dir(), reason=f"the recordings of real engines are not at {WIRE}")

BACKENDS = {
    "xllamacpp": "llama.cpp",
    "llama-server": "llama.cpp",
    "llama_cpp.server": "llama-cpp-python",
    "mlx_lm.server": "mlx",
}


@dataclass(frozen=True)
class Exchange:
    """request: the body that was sent. pieces: the response's bytes, as they arrived."""

    engine: str
    case: str
    request: bytes
    pieces: tuple[bytes, ...]

    @property
    def runtime(self) -> str:
        return next(runtime for name, runtime in BACKENDS.items() if self.engine.startswith(name))

    @property
    def status(self) -> int | None:
        found = re.match(rb"HTTP/1\.\d (\d+)", b"".join(self.pieces))
        return int(found[1]) if found else None


def exchange(engine: str, case: str) -> Exchange:
    return _read(WIRE / engine / f"{case}.txt")


def chats() -> Iterator[Exchange]:
    """Every recorded chat completion that was answered."""
    for path in sorted(WIRE.glob("*/*.txt")):
        if not any(path.parent.name.startswith(name) for name in BACKENDS) or "router" in path.parent.name:
            continue
        one = _read(path)
        # The recorder itself left that one.
        if one.case == "stream_client_disconnect":
            continue
        if one.status is not None and b"POST /v1/chat/completions" in path.read_bytes():
            yield one


def _read(path: Path) -> Exchange:
    request, _, response = path.read_bytes().partition(b"<<< RESPONSE")
    pieces = re.split(rb"\[t=\d+\.\d+s\]", response.partition(b"\n")[2].lstrip(b"\n"))
    # The recorder ends the file with a line break of its own.
    pieces[-1] = pieces[-1].removesuffix(b"\n")
    head, _, body = b"".join(pieces).partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    if length:
        # Paths in the recorded bodies were shortened afterwards.
        at = slice(*length.span(1))
        pieces = [head[: at.start] + b"%d" % len(body) + head[at.stop :] + b"\r\n\r\n", body]
    return Exchange(
        path.parent.name,
        path.stem,
        request.partition(b"\r\n\r\n")[2].rstrip(b"\n"),
        tuple(piece for piece in pieces if piece),
    )


@asynccontextmanager
async def played(*exchanges: Exchange) -> AsyncIterator[Address]:
    """A server that answers its first POSTs with these, in order, one a connection, and knows nothing else."""
    waiting = list(exchanges)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET "):
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            writer.close()
            return
        for piece in waiting.pop(0).pieces:
            writer.write(piece)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield Address(port=server.sockets[0].getsockname()[1])

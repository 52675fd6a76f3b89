"""The load: raw asyncio clients with keep-alive that check every answer.

Each function drives one kind of load and returns what it saw. The caller passes `cpu`, a reading of
the proxy's CPU seconds so far, so that a cost covers the same moments as the work it is divided by.
"""

import asyncio
import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import httptools

from benchmarks.harness.answers import (
    FIRST_WORD,
    BadAnswer,
    Script,
    check_stream,
    check_whole,
    request_body,
)

CpuClock = Callable[[], float]
KEY = "bench"
"""The API key that is sent to servers that need none."""


@dataclass(frozen=True)
class Cost:
    """CPU seconds that `count` units of work cost the proxy."""

    cpu: float
    count: int

    @property
    def micros(self) -> float:
        return self.cpu / self.count * 1e6


class Client(asyncio.Protocol):
    """One connection, one request at a time. `on_part` sees body bytes as they come."""

    transport: asyncio.Transport

    def __init__(self, key: str = KEY) -> None:
        self._key = key
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[bytes] | None = None
        self._parts: list[bytes] = []
        self.on_part: Callable[[bytes], None] = lambda part: None

    @classmethod
    async def connect(cls, port: int, key: str = KEY) -> "Client":
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: cls(key), "127.0.0.1", port)
        return client

    def send(self, body: bytes, path: str = "/v1/chat/completions") -> asyncio.Future[bytes]:
        """Posts a request; resolves to the body of a 200, else raises `BadAnswer`."""
        self._answer = asyncio.get_running_loop().create_future()
        self._parts = []
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {self._key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        return self._answer

    def close(self) -> None:
        self.transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods alone

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer and not self._answer.done():
            self._answer.set_exception(BadAnswer("the connection was closed within an answer"))

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)
        self.on_part(part)

    def on_message_complete(self) -> None:
        assert self._answer is not None
        body, status = b"".join(self._parts), self._parser.get_status_code()
        if status == 200:
            self._answer.set_result(body)
        else:
            self._answer.set_exception(BadAnswer(f"status {status}: {body[:300]!r}"))


async def check(port: int) -> None:
    """A few answers of each kind, one after another: correctness, and the proxy's first-use work."""
    await in_turn(port, 16)
    client = await Client.connect(port)
    for _ in range(4):
        script = Script(chunks=20)
        check_stream(await client.send(request_body(script)), script)
    client.close()


async def in_turn(port: int, count: int, key: str = KEY, tier: str | None = None) -> None:
    """`count` whole answers, one after another. tier: their service tier."""
    client = await Client.connect(port, key)
    for _ in range(count):
        check_whole(await client.send(request_body(None, tier)))
    client.close()


async def get(port: int, path: str, key: str) -> None:
    """Asks for one page. Raises `BadAnswer` unless it comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode())
    if not (answer := await reader.read()).startswith(b"HTTP/1.1 200"):
        raise BadAnswer(f"{path}: {answer[:300]!r}")
    writer.close()


async def requests(port: int, cpu: CpuClock, *, connections: int, seconds: float, warm_up: float = 0.3) -> Cost:
    """Whole answers, each connection asking again as soon as it was answered."""
    body = request_body(None)
    done = 0
    stop = False

    async def ask() -> None:
        nonlocal done
        client = await Client.connect(port)
        while not stop:
            check_whole(await client.send(body))
            done += 1
        client.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(ask())
        await asyncio.sleep(warm_up)
        cpu_before, done_before = cpu(), done
        await asyncio.sleep(seconds)
        cost = Cost(cpu() - cpu_before, done - done_before)
        stop = True
    return cost


async def streams(port: int, upstream: int, cpu: CpuClock, *, count: int, script: Script) -> Cost:
    """`count` streams at once, through `port`; the cost of the chunks alone.

    The upstream holds the streams until all of them are open; the reading begins there and ends
    with the first `[DONE]`, so it has neither the requests nor the closing in it.
    """
    script = replace(script, held=True)
    all_open = asyncio.Event()
    opened = chunks = chunks_before = 0
    cpu_before = 0.0
    cost: Cost | None = None

    async def stream() -> bytes:
        nonlocal cost
        client = await Client.connect(port)
        begun = False

        def on_part(part: bytes) -> None:
            nonlocal begun, opened, chunks
            chunks += part.count(b"data: ")
            if not begun and FIRST_WORD in part:
                begun = True
                opened += 1
                if opened == count:
                    all_open.set()

        client.on_part = on_part
        answer = await client.send(request_body(script))
        if cost is None:
            cost = Cost(cpu() - cpu_before, chunks - chunks_before)
        client.close()
        return answer

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(stream()) for _ in range(count)]
        await all_open.wait()
        cpu_before, chunks_before = cpu(), chunks
        await release(upstream)
    for task in tasks:
        check_stream(task.result(), script)
    assert cost is not None
    return cost


async def one_by_one(port: int, upstream: int, script: Script) -> None:
    """One stream whose next chunk leaves the upstream only when the one before has arrived here, so
    that no two are ever read together, however slow the proxy."""
    script = replace(script, held=True)
    arrived = asyncio.Event()
    client = await Client.connect(port)
    client.on_part = lambda part: arrived.set()
    answer = client.send(request_body(script))
    answer.add_done_callback(lambda _: arrived.set())
    reader, writer = await asyncio.open_connection("127.0.0.1", upstream)
    while not answer.done():
        # A chunk of which nothing may be sent yet brings no answer: then the next one goes unasked.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(arrived.wait(), 0.25)
        arrived.clear()
        await _tell(reader, writer, "/step")
    check_stream(await answer, script)
    writer.close()
    client.close()


async def release(upstream: int) -> None:
    """Lets the streams go that the upstream holds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", upstream)
    await _tell(reader, writer, "/go")
    writer.close()


async def _tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    await reader.readuntil(b"{}")


async def first_token(port: int, *, times: int) -> float:
    """Median seconds from sending a streamed request to its first delta, one stream at a time."""
    script = Script(chunks=3)
    body = request_body(script)
    client = await Client.connect(port)
    waits: list[float] = []
    for _ in range(times):
        first: list[float] = []

        def on_part(part: bytes, first: list[float] = first) -> None:
            if not first and FIRST_WORD in part:
                first.append(time.perf_counter())

        client.on_part = on_part
        sent = time.perf_counter()
        check_stream(await client.send(body), script)
        waits.append(first[0] - sent)
    client.close()
    return statistics.median(waits)

"""A scripted OpenAI server, fast enough to vanish beside any proxy in front of it.

Streams go out as engines send them: chunked transfer encoding, one event for each write. `GET /go`
releases the streams that are held, spread evenly over one interval; `GET /step` sends one event of each.
"""

import argparse
import asyncio
import ctypes
import heapq
import itertools
import os
import time
from typing import cast

import httptools

from benchmarks.harness.answers import MODEL, Script, events, read_request, whole_answer


def _respond(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


_WHOLE = _respond(whole_answer())
_MODELS = _respond(b'{"object":"list","data":[{"id":"%s","object":"model"}]}' % MODEL.encode())
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_DONE = b"data: [DONE]\n\n"


class Stream:
    """One streamed answer on its way out."""

    def __init__(self, connection: "Connection", script: Script) -> None:
        self.every = script.every_ms / 1000
        self._connection = connection
        self._events = iter(events(script))
        connection.transport.write(_STREAM_HEAD)

    def send_next(self) -> bool:
        """Writes one event; False when the answer has ended or the client has gone."""
        event = next(self._events, None)
        if event is None or self._connection.transport.is_closing():
            return False
        frame = b"%x\r\n%b\r\n" % (len(event), event)
        self._connection.transport.write(frame + b"0\r\n\r\n" if event == _DONE else frame)
        return True

    async def send_all(self) -> None:
        """As fast as the client reads, one write an event."""
        while self.send_next():
            await self._connection.writable.wait()


class Pacer:
    """Sends one event of each stream every interval, each stream at a moment of its own.

    Event loops round timers up to 1 ms, which would bunch the streams: the kernel's timer doesn't.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer: int = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK)
        self._queue: list[tuple[float, int, Stream]] = []
        self._order = itertools.count()
        loop.add_reader(self._timer, self._tick)

    def add(self, stream: Stream, delay: float) -> None:
        self._push(stream, time.monotonic() + delay)
        self._arm()

    def _push(self, stream: Stream, due: float) -> None:
        heapq.heappush(self._queue, (due, next(self._order), stream))

    def _tick(self) -> None:
        os.read(self._timer, 8)
        now = time.monotonic()
        while self._queue and self._queue[0][0] <= now:
            due, _, stream = heapq.heappop(self._queue)
            if stream.send_next():
                # A late event is not made up for: a burst would be cheaper than paced chunks.
                self._push(stream, max(due, now - stream.every) + stream.every)
        self._arm()

    def _arm(self) -> None:
        if self._queue:
            wait = max(1, int((self._queue[0][0] - time.monotonic()) * 1e9))
            spec = (ctypes.c_long * 4)(0, 0, wait // 10**9, wait % 10**9)  # struct itimerspec
            self._libc.timerfd_settime(self._timer, 0, spec, None)


class Upstream:
    def __init__(self) -> None:
        self._pacer = Pacer(asyncio.get_running_loop())
        self._held: list[Stream] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, connection: "Connection", script: Script) -> None:
        stream = Stream(connection, script)
        stream.send_next()
        stream.send_next()
        if script.held:
            self._held.append(stream)
        else:
            self._start(stream, stream.every)

    def go(self) -> None:
        held, self._held = self._held, []
        for i, stream in enumerate(held):
            self._start(stream, stream.every * (1 + i / len(held)))

    def step(self) -> None:
        self._held = [stream for stream in self._held if stream.send_next()]

    def _start(self, stream: Stream, delay: float) -> None:
        if stream.every:
            self._pacer.add(stream, delay)
        else:
            task = asyncio.create_task(stream.send_all())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


class Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._parser = httptools.HttpRequestParser(self)
        self._url = self._body = b""
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods alone

    def connection_lost(self, exc: Exception | None) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def on_message_begin(self) -> None:
        self._url = self._body = b""

    def on_url(self, part: bytes) -> None:
        self._url += part

    def on_body(self, part: bytes) -> None:
        self._body += part

    def on_message_complete(self) -> None:
        if self._url == b"/go":
            self._upstream.go()
            self.transport.write(_respond(b"{}"))
        elif self._url == b"/step":
            self._upstream.step()
            self.transport.write(_respond(b"{}"))
        elif self._parser.get_method() == b"GET":
            self.transport.write(_MODELS)
        elif (script := read_request(self._body)) is None:
            self.transport.write(_WHOLE)
        else:
            self._upstream.open(self, script)


async def serve(port: int) -> None:
    upstream = Upstream()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(upstream), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(serve(parser.parse_args().port))

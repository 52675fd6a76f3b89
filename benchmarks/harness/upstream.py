"""A scripted OpenAI server, fast enough to vanish beside any proxy in front of it.

Streams go out as engines send them: chunked transfer encoding, one event for each write.
"""

import argparse
import asyncio
from collections import defaultdict
from typing import cast

import httptools

from benchmarks.harness.answers import MODEL, Script, events, read_request, whole_answer


def _respond(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


_WHOLE = _respond(whole_answer())
_MODELS = _respond(b'{"object":"list","data":[{"id":"%s","object":"model"}]}' % MODEL.encode())
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


class Stream:
    """One streamed answer on its way out."""

    def __init__(self, connection: "Connection", script: Script) -> None:
        self.script = script
        self._connection = connection
        self._events = iter(events(script))
        self._due = 0.0

    def send_next(self) -> bool:
        """Writes one event; False when the answer has ended or the client has gone."""
        event = next(self._events, None)
        if event is None or self._connection.transport.is_closing():
            return False
        frame = b"%x\r\n%b\r\n" % (len(event), event)
        if event == b"data: [DONE]\n\n":
            frame += b"0\r\n\r\n"
        self._connection.transport.write(frame)
        return True

    def run(self, loop: asyncio.AbstractEventLoop, delay: float = 0.0) -> None:
        """Sends the rest at the script's pace, the first of it after `delay` seconds."""
        self._due = loop.time() + delay
        loop.call_at(self._due, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._connection.paused:
            self._connection.resume = lambda: self.run(loop)
        elif self.send_next():
            # A late tick is not made up for: a burst would be cheaper than paced chunks.
            self._due = max(self._due + self.script.every_ms / 1000, loop.time())
            loop.call_at(self._due, self._tick, loop)


class Upstream:
    """Where streams that shall run together wait for each other."""

    def __init__(self) -> None:
        self._waiting: defaultdict[Script, list[Stream]] = defaultdict(list)

    def open(self, connection: "Connection", script: Script) -> None:
        stream = Stream(connection, script)
        connection.transport.write(_STREAM_HEAD)
        stream.send_next()
        stream.send_next()
        group = self._waiting[script]
        group.append(stream)
        if len(group) >= script.together:
            del self._waiting[script]
            loop = asyncio.get_running_loop()
            for i, member in enumerate(group):
                member.run(loop, (1 + i / len(group)) * script.every_ms / 1000)


class Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""
        self.paused = False
        self.resume = lambda: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods alone

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        resume, self.resume = self.resume, lambda: None
        resume()

    def on_message_begin(self) -> None:
        self._body = b""

    def on_body(self, part: bytes) -> None:
        self._body += part

    def on_message_complete(self) -> None:
        if self._parser.get_method() == b"GET":
            self.transport.write(_MODELS)
        elif (script := read_request(self._body)) is None:
            self.transport.write(_WHOLE)
        else:
            self._upstream.open(self, script)


async def serve(port: int) -> None:
    upstream = Upstream()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(upstream), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(serve(parser.parse_args().port))

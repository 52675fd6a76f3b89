"""How soon the engine is told that a client has gone, and what a client that stalls costs.

    python benchmarks/disconnects.py            # 100 clients of each kind, half a minute

The gateway runs as `ctxgate serve`; its clients and the engine behind it are here, so that one clock
times both ends: from the moment at which a client closes its socket to the one at which the engine
sees its own closed. Exit code 1 when any of them took more than 100 ms.
"""

import argparse
import asyncio
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a file, too

from benchmarks.harness import proc, report
from benchmarks.harness.stacks import STACKS, Place

LIMIT_MS = 100.0
WITHIN = 60.0
"""Seconds for any one wait."""
STALLED_MB = 3.0
"""Goal for each stalled client: what is held at both ends of it, below the kernel's buffers."""

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DELTA = {"choices": [{"index": 0, "delta": {"content": "Hello"}, "finish_reason": None}]}
LONG_DELTA = {"choices": [{"index": 0, "delta": {"content": "x" * 16_000}, "finish_reason": None}]}


@dataclass(frozen=True)
class Leaving:
    """`does` is what the engine does until the client leaves: nothing, one delta, or deltas without end."""

    title: str
    stream: bool
    does: str
    prompt: int = 100


KINDS = (
    Leaving("in mid-stream", True, "one"),
    Leaving("while a whole answer is made", False, "nothing"),
    Leaving("before a stream has begun", True, "nothing"),
    Leaving("in mid-stream, prompt of 1 MB", True, "one", 1_000_000),
    Leaving("whole answer, prompt of 1 MB", False, "nothing", 1_000_000),
    Leaving("stalled, deltas without end", True, "flood"),
)


@dataclass
class Engine:
    """Does as the prompt says. `asked` and `gone` are the moments of each client, by its number."""

    port: int = 0
    asked: dict[int, asyncio.Future[float]] = field(default_factory=dict)
    gone: dict[int, asyncio.Future[float]] = field(default_factory=dict)
    sent: int = 0

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["Engine"]:
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, limit=2**22)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    def expect(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        self.asked[number], self.gone[number] = loop.create_future(), loop.create_future()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = -1
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
            request = json.loads(await reader.readexactly(length))
            does, _, rest = request["messages"][0]["content"].partition(" ")
            number = int(rest.split(" ", 1)[0])
            if does != "nothing":
                writer.write(HEAD + _chunk(DELTA))
            self.asked[number].set_result(time.perf_counter())
            while does == "flood":
                writer.write(_chunk(LONG_DELTA))
                await writer.drain()
                self.sent += 16_000
            await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # what is waited for
        finally:
            if number in self.gone:
                self.gone[number].set_result(time.perf_counter())
            writer.transport.abort()


def _chunk(payload: Mapping[str, object]) -> bytes:
    data = b"data: %b\n\n" % json.dumps(payload).encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _ask(kind: Leaving, number: int, port: int, engine: Engine) -> asyncio.StreamWriter:
    """One client whose request has reached the engine, and who has read the first delta if there is one."""
    engine.expect(number)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**16)
    text = f"{kind.does} {number} {'x' * kind.prompt}"
    body = json.dumps({"stream": kind.stream, "messages": [{"role": "user", "content": text}]}).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    async with asyncio.timeout(WITHIN):
        await engine.asked[number]
        if kind.does != "nothing":
            await reader.readuntil(b"Hello")
    return writer


async def leave(kind: Leaving, count: int, port: int, engine: Engine) -> list[float]:
    """Seconds until the engine saw each of `count` clients go, while the others stayed."""
    first = len(engine.asked)
    clients = {number: await _ask(kind, number, port, engine) for number in range(first, first + count)}
    took = []
    for number, writer in clients.items():
        left = time.perf_counter()
        writer.transport.abort()
        async with asyncio.timeout(WITHIN):
            took.append(await engine.gone[number] - left)
    return took


async def stall(count: int, port: int, engine: Engine, gateway: proc.Server) -> tuple[float, float]:
    """MB that the gateway grew by for each of `count` clients that stopped reading; MB that the engine could send."""
    kind = KINDS[-1]
    before, first, sent = proc.rss_mb(gateway.pids()), len(engine.asked), engine.sent
    clients = [await _ask(kind, number, port, engine) for number in range(first, first + count)]
    last = -1
    async with asyncio.timeout(WITHIN):
        while last != engine.sent:  # until back-pressure has reached the engine
            last = engine.sent
            await asyncio.sleep(0.5)
    grown = (proc.rss_mb(gateway.pids()) - before) / count
    for writer in clients:
        writer.transport.abort()
    async with asyncio.timeout(WITHIN):
        await asyncio.gather(*(engine.gone[number] for number in range(first, first + count)))
    return grown, (engine.sent - sent) / count / 1e6


@dataclass(frozen=True)
class Findings:
    seconds: Mapping[str, Sequence[float]]
    """For each kind, of each client."""
    stalled_mb: float
    sent_mb: float

    def goals(self) -> list[report.Goal]:
        found = [
            report.Goal(f"{title}: slowest, ms", max(took) * 1000, "<=", LIMIT_MS)
            for title, took in self.seconds.items()
        ]
        return [*found, report.Goal("MB for each stalled client", self.stalled_mb, "<=", STALLED_MB)]

    def table(self) -> str:
        lines = [
            "| clients that leave | number | median, ms | 99th, ms | slowest, ms |",
            "| --- | --: | --: | --: | --: |",
        ]
        for title, took in self.seconds.items():
            ms = sorted(second * 1000 for second in took)
            ninety_ninth = ms[math.ceil(len(ms) * 0.99) - 1]
            lines.append(f"| {title} | {len(ms)} | {statistics.median(ms):.2f} | {ninety_ninth:.2f} | {ms[-1]:.2f} |")
        return "\n".join(lines)


async def measure(count: int) -> Findings:
    with tempfile.TemporaryDirectory() as name:
        async with Engine().serve() as engine:
            folder, stack = Path(name), STACKS["ctxgate"]
            place = Place(engine.port, proc.free_port(), folder, folder)
            gateway = proc.Server.start(stack.command(place), place.port, folder / "log", env=stack.env, cwd=folder)
            try:
                await asyncio.to_thread(gateway.wait_ready, stack.ready, stack.start_timeout)
                await leave(KINDS[0], 5, place.port, engine)  # warms up
                few = max(1, count // 10)
                # First of all: memory that others used and gave back would hide what these cost.
                grown, sent = await stall(few, place.port, engine, gateway)
                found = {
                    kind.title: await leave(kind, few if kind.does == "flood" else count, place.port, engine)
                    for kind in KINDS
                }
            finally:
                await asyncio.to_thread(gateway.stop)
            return Findings(found, grown, sent)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100, help="of each kind (default: 100)")
    found = uvloop.run(measure(parser.parse_args(arguments).clients))
    print(f"{proc.machine()}; {time.strftime('%Y-%m-%d')}.\n\n{found.table()}\n")
    print(f"Clients that stall cost {found.stalled_mb:.2f} MB each; the engine could send each {found.sent_mb:.1f} MB, "
          "nearly all of it into the kernel's socket buffers.\n")  # fmt: skip
    goals = found.goals()
    print("\n".join(map(str, goals)))
    return 1 if any(goal.met is False for goal in goals) else 0


if __name__ == "__main__":
    proc.end_on_sigterm()
    with suppress(KeyboardInterrupt):
        sys.exit(main())

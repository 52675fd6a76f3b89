"""Many rooms, each with followers: is the order right, is memory bounded, how late is an event?

    python benchmarks/rooms.py                              # 200 rooms, 400 followers, about a minute
    python benchmarks/rooms.py --rooms 20 --turns 2         # a quick look

The gateway runs as `ctxgate serve` with the built-in echo model and SQLite; the clients are here. Every room has two
followers that read; the first rooms have a third one that never does. Exit code 1 when an event is missing, comes twice
or out of order, or when memory grew by more than LIMIT_MB.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a file, too

from benchmarks.harness import proc

LIMIT_MB = 150.0
SECONDS = 300
STALLED = 20

CONFIG = """\
active_model: echo
models: {{echo: {{runtime: echo}}}}
state_dir: {folder}
server: {{port: {port}}}
"""


@dataclass
class Follower:
    """One client of a room's events."""

    room: str
    seqs: list[int] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    """Milliseconds from the moment that an event carries to its arrival."""
    turns: int = 0
    turned: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with each turn's end."""


async def call(port: int, method: str, path: str, body: object = None) -> dict[str, object]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    content = json.dumps(body).encode() if body is not None else b""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    answer = await reader.read()
    writer.close()
    envelope = json.loads(answer.partition(b"\r\n\r\n")[2])
    if not envelope["success"]:
        raise proc.Failed(f"{method} {path}: {envelope['message']}")
    data: dict[str, object] = envelope["data"]
    return data


async def open_events(port: int, room: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /llm/room/{room}/events?follow=true HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    return reader, writer


async def follow(port: int, follower: Follower, turns: int, ready: asyncio.Event) -> None:
    """Until so many turns have ended."""
    reader, writer = await open_events(port, follower.room)
    ready.set()
    while follower.turns < turns:
        line = await reader.readline()
        if not line:
            raise proc.Failed(f"the stream of {follower.room} ended after {follower.turns} turns")
        if not line.startswith(b"data: "):
            continue
        event = json.loads(line[6:])
        created = datetime.fromisoformat(event["created_at"]).timestamp()
        follower.late.append((datetime.now(UTC).timestamp() - created) * 1000)
        follower.seqs.append(event["seq"])
        if event["event_type"] == "room:idle":
            follower.turns += 1
            follower.turned.set()
    writer.close()


async def talk(port: int, room: str, followers: list[Follower], turns: int) -> None:
    """The next message once all have seen the turn's end."""
    for number in range(turns):
        await call(port, "POST", f"/llm/room/{room}/messages", {"content": f"message {number} " + "x" * 200})
        for follower in followers:
            await follower.turned.wait()
            follower.turned.clear()


async def load(port: int, pid: int, rooms: int, turns: int) -> tuple[list[Follower], dict[str, float]]:
    pids = proc.tree(pid, proc.parents())
    figures = {"rss_start": proc.rss_mb(pids)}
    ids = [str((await call(port, "POST", "/llm/room", {}))["id"]) for _ in range(rooms)]
    figures["rss_rented"] = proc.rss_mb(pids)
    followers = [Follower(room) for room in ids for _ in range(2)]
    ready = [asyncio.Event() for _ in followers]
    tasks = [
        asyncio.create_task(follow(port, follower, turns, event))
        for follower, event in zip(followers, ready, strict=True)
    ]
    stalled = [await open_events(port, room) for room in ids[:STALLED]]
    for event in ready:
        await event.wait()
    figures["rss_followed"] = proc.rss_mb(pids)
    cpu, began = proc.cpu_seconds(pids), time.perf_counter()
    await asyncio.gather(*(talk(port, room, [f for f in followers if f.room == room], turns) for room in ids), *tasks)
    figures["seconds"] = time.perf_counter() - began
    figures["cpu_seconds"] = proc.cpu_seconds(pids) - cpu
    figures["rss_end"] = proc.rss_mb(pids)
    for _, writer in stalled:
        writer.close()
    return followers, figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rooms", type=int, default=200)
    parser.add_argument("--turns", type=int, default=10)
    args = parser.parse_args()
    port = proc.free_port()
    with tempfile.TemporaryDirectory(prefix="ctxgate-rooms-") as name:
        folder = Path(name)
        file = folder / "config.yaml"
        file.write_text(CONFIG.format(folder=folder / "state", port=port), encoding="utf-8")
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(file)]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stderr=log, cwd=Path(__file__).resolve().parents[1])
        try:
            followers, figures = asyncio.run(_run(port, process.pid, args.rooms, args.turns))
        finally:
            process.terminate()
            process.wait(30)
    return report(followers, figures, args.rooms, args.turns)


async def _run(port: int, pid: int, rooms: int, turns: int) -> tuple[list[Follower], dict[str, float]]:
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                await call(port, "GET", "/llm/room")
            except (OSError, ValueError):
                await asyncio.sleep(0.05)
            else:
                return await load(port, pid, rooms, turns)


def report(followers: list[Follower], figures: dict[str, float], rooms: int, turns: int) -> int:
    wrong = [follower for follower in followers if follower.seqs != list(range(1, len(follower.seqs) + 1))]
    late = sorted(value for follower in followers for value in follower.late)
    events = len(late)
    grown = figures["rss_end"] - figures["rss_start"]
    percentiles = statistics.quantiles(late, n=100)
    print(f"{proc.machine()}")
    print(f"{rooms} rooms, {len(followers)} followers, {STALLED} stalled ones, {turns} turns a room")
    print(f"order: {'right' if not wrong else f'WRONG for {len(wrong)} followers'}")
    seconds = figures["seconds"]
    print(f"events delivered: {events}, {events / seconds:.0f}/s; turns: {rooms * turns / seconds:.1f}/s")
    print(f"late, ms: p50 {percentiles[49]:.0f}, p95 {percentiles[94]:.0f}, p99 {percentiles[98]:.0f}")
    print(f"CPU: {figures['cpu_seconds'] / (rooms * turns) * 1000:.1f} ms a turn")
    print(
        f"RSS, MB: {figures['rss_start']:.0f} rooms open, {figures['rss_rented']:.0f} all rented, "
        f"{figures['rss_followed']:.0f} followed, {figures['rss_end']:.0f} at the end"
    )
    if grown > LIMIT_MB:
        print(f"memory grew by {grown:.0f} MB, more than {LIMIT_MB:.0f}")
    return 1 if wrong or grown > LIMIT_MB else 0


if __name__ == "__main__":
    sys.exit(main())

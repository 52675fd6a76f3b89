"""Many clients at once, slow ones among them, and a gateway that is killed while it answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from tests.ctx.engine import Words, with_engine
from tests.ctx.served import Tree, text, tree, types
from tests.gateway.double import Double
from tests.patience import PATIENCE

ECHO = {"active_model": "echo", "models": {"echo": {"runtime": "echo"}}}

READERS, TALKERS, FAST = 52, 20, 128
"""Slow clients that resume a long session, slow ones that are answered in a temporary session, and fast ones."""
TURNS, LONG, SHORT = 24, 60_000, 5_000
"""Of the long session; bytes that a slow client has echoed, and a fast one."""
HELD = 48 * 1024 * 1024
"""Bytes that the gateway may grow by. What the slow clients have not read yet is more than three times that."""


@asynccontextmanager
async def connected(path: Path) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_unix_connection(path, limit=2**21)
    try:
        yield reader, writer
    finally:
        writer.close()
        await writer.wait_closed()


def words(number: int, size: int) -> str:
    """No two clients say the same, nor does one twice."""
    word = f"{number:03}-" + "x" * 996
    return " ".join(f"{word}{place:06}" for place in range(size // 1000))


async def frames(reader: asyncio.StreamReader) -> list[dict[str, Any]]:
    """Up to the end of the run."""
    found: list[dict[str, Any]] = []
    while not found or found[-1]["type"] != "done":
        line = await reader.readline()
        assert line.endswith(b"\n")
        found.append(json.loads(line))
    return found


@pytest.mark.slow
async def test_two_hundred_clients(short: Path) -> None:
    with tree(short, ECHO) as made:
        path = made.object("debug/echo.sock")
        book: list[dict[str, Any]] = []
        async with asyncio.timeout(PATIENCE), connected(path) as (reader, writer):
            for turn in range(TURNS):
                send = {"op": "send", "id": f"m{turn}", "session": "book", "input": words(turn, LONG)}
                writer.write(json.dumps(send).encode() + b"\n")
                book += await frames(reader)
        size = sum(len(json.dumps(frame)) for frame in book)
        before = made.resident()
        enough = asyncio.Event()
        begun = asyncio.Semaphore(0)

        async def stall(writer: asyncio.StreamWriter) -> None:
            """Nothing is read any more, so that the way to this client fills up."""
            transport = cast(asyncio.Transport, writer.transport)  # a socket's reads, too
            transport.pause_reading()
            begun.release()
            await enough.wait()
            transport.resume_reading()

        async def read_slowly(number: int) -> None:
            async with connected(path) as (reader, writer):
                writer.write(b'{"op":"resume","session":"book"}\n')
                first = json.loads(await reader.readline())
                await stall(writer)
                told = [first]
                while len(told) < len(book):
                    told.append(json.loads(await reader.readline()))
                assert told == book
                writer.write(b'{"op":"ping"}\n')
                assert await reader.readline() == b'{"type":"pong"}\n'

        async def talk(number: int, scope: str, size: int, *, slowly: bool) -> None:
            said = words(number, size)
            async with connected(path) as (reader, writer):
                send = {"op": "send", "id": f"m{number}", "session": f"s{number}", "scope": scope, "input": said}
                writer.write(json.dumps(send).encode() + b"\n")
                start = json.loads(await reader.readline())
                if slowly:
                    await stall(writer)
                told = [start, *await frames(reader)]
            assert text(told) == said
            assert types(told) == ["start", *["delta"] * (len(told) - 4), "message", "usage", "done"]
            assert told[-3]["content"][0]["text"] == said
            assert {frame["run"] for frame in told} == {start["run"]}
            if scope != "temp":
                assert [frame["id"] for frame in told] == [f"event-{at + 1}" for at in range(len(told))]

        async with asyncio.timeout(PATIENCE):
            slow = [asyncio.create_task(read_slowly(number)) for number in range(READERS)]
            slow += [asyncio.create_task(talk(100 + at, "temp", LONG, slowly=True)) for at in range(TALKERS)]
            fast = [
                asyncio.create_task(talk(200 + at, ("private", "shared")[at % 2], SHORT, slowly=False))
                for at in range(FAST)
            ]
            for _ in slow:
                await begun.acquire()
            await asyncio.gather(*fast)
            # All memory for the slow clients is taken now.
            waiting = made.resident()
            enough.set()
            await asyncio.gather(*slow)
        after = made.resident()
    unread = READERS * size
    print(f"RSS {before >> 20} MB; {waiting >> 20} MB while {unread >> 20} MB are unread; {after >> 20} MB after")
    assert unread > 3 * HELD
    assert waiting - before < HELD
    assert after - before < HELD


# Killed


async def test_killed_in_mid_session(short: Path) -> None:
    engine = Words()
    sessions = 10
    async with Double(engine.script).serve() as double:
        with tree(short, with_engine(double), start=False) as made:
            await asyncio.to_thread(made.start)
            seen: dict[int, list[dict[str, Any]]] = {}
            path = made.object("acme/m.sock")

            async def talk(number: int) -> None:
                async with connected(path) as (reader, writer):
                    send = {"op": "send", "id": "m1", "session": f"s{number}", "input": f"go {number}"}
                    writer.write(json.dumps(send).encode() + b"\n")
                    seen[number] = []
                    while line := await reader.readline():
                        seen[number].append(json.loads(line))

            async with asyncio.timeout(PATIENCE):
                talks = [asyncio.create_task(talk(number)) for number in range(sessions)]
                await double.asked(sessions)
                released = 0
                while not (len(seen) == sessions and all(len(told) > 4 for told in seen.values())):
                    # No answer ends, however slow the gateway is.
                    if released < sum(map(len, seen.values())) + 2 * sessions:
                        engine.permits.release()
                        released += 1
                    await asyncio.sleep(0.002)
                await asyncio.to_thread(made.kill)
                await asyncio.gather(*talks)
                assert path.is_socket()
                with pytest.raises(ConnectionRefusedError):
                    made.connect("acme/m")
                await asyncio.to_thread(made.start)
                for number in range(sessions):
                    await asyncio.to_thread(_look, made, number, seen[number])
                assert len(engine.asked) == sessions

                # And the session goes on, without the turn that failed.
                for _ in range(1000):
                    engine.permits.release()
                await asyncio.to_thread(_go_on, made)
                assert [message["content"] for message in engine.asked[-1]["messages"]] == ["again"]


def _look(made: Tree, number: int, seen: list[dict[str, Any]]) -> None:
    """What a client finds that comes back after the crash."""
    session, run = f"s{number}", seen[0]["run"]
    with made.connect("acme/m") as client:
        client.ask(op="resume", session=session)
        history = client.until()
        # The record has the received events in their place, and a complete rest.
        assert history[: len(seen)] == seen
        assert [frame["id"] for frame in history] == [f"event-{at + 1}" for at in range(len(history))]
        assert types(history) == ["start", *["delta"] * (len(history) - 3), "error", "done"]
        said = "".join(f"word{at} " for at in range(200))
        assert said.startswith(text(history))
        assert history[-2] == {**history[-2], "code": "EINTR", "run": run}
        assert history[-1] == {**history[-1], "status": "error", "run": run}
        client.ask(op="resume", session=session, after=seen[-1]["id"])
        assert client.until() == history[len(seen) :]
        # The same message again is a retry.
        client.ask(op="send", id="m1", session=session, input=f"go {number}")
        client.ask(op="ping")
        assert client.frame() == history[-1]
        assert client.frame() == {"type": "pong"}


def _go_on(made: Tree) -> None:
    with made.connect("acme/m") as client:
        client.ask(op="send", id="m2", session="s0", input="again")
        told = client.until()
        assert told[-1]["status"] == "ok"
        assert text(told) == "".join(f"word{at} " for at in range(200))


async def test_stopped_in_mid_session(short: Path) -> None:
    """A gateway that ends in order says so to who listens, and leaves nothing unfinished."""
    engine = Words()
    async with Double(engine.script).serve() as double:
        with tree(short, with_engine(double), start=False) as made:
            await asyncio.to_thread(made.start)
            async with asyncio.timeout(PATIENCE), connected(made.object("acme/m.sock")) as (reader, writer):
                writer.write(b'{"op":"send","id":"m1","input":"go"}\n')
                await reader.readline()
                engine.permits.release()
                await reader.readline()
                assert made.process is not None
                made.process.terminate()
                told = [json.loads(line) for line in (await reader.read()).splitlines()]
            assert [frame.get("code", frame["type"]) for frame in told] == ["EINTR", "done"]
            await asyncio.to_thread(made.process.wait, PATIENCE)
            made.process = None
            assert not made.object("acme/m.sock").exists()
            assert made.object("acme/m.d/status").read_text() == "offline\n"
            await asyncio.to_thread(made.start)
            with made.connect("acme/m") as client:
                client.ask(op="resume", after=told[0]["id"])
                assert client.until() == told[1:]

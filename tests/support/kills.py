"""A gateway that is killed at any moment, and what the clients of its rooms were told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.cli.commands import environment
from tests.gateway.double import Exchange
from tests.patience import PATIENCE
from tests.rooms.running import Json, calls, speaks
from tests.store.postgresql import start

CONFIG = """\
active_model: m
models:
  m: {{runtime: openai, base_url: "http://127.0.0.1:{engine}"}}
state_dir: {folder}/state
{store}
server: {{port: {port}}}
"""

LOST = (httpx.TransportError, httpx.StreamError, httpx.HTTPStatusError)


async def engine(exchange: Exchange) -> None:
    """One tool call for each message, then an answer; takes a moment for each."""
    messages = exchange.json["messages"]
    await asyncio.sleep(0.02)
    if messages[-1]["role"] == "tool":
        await speaks("It ", "is ", "made.", tokens=3)(exchange)
    else:
        await calls(("tool_mkdir", {"path": f"/{messages[-1]['content']}"}))(exchange)


@dataclass
class Gateway:
    """`ctxgate serve` that can be killed, and started again on what it left."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None
    kills: int = 0

    async def start(self) -> None:
        command = [sys.executable, "-m", "gateway", "serve"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(  # noqa: ASYNC220 - it is killed, not waited for
                command, cwd=self.folder, env=environment(self.folder), stderr=log
            )
        async with asyncio.timeout(PATIENCE), httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as http:
            while True:
                try:
                    await http.get(f"http://127.0.0.1:{self.port}/health")
                except httpx.TransportError:
                    assert self.process.poll() is None, (self.folder / "log").read_text()
                    await asyncio.sleep(0.05)
                else:
                    return

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)
        self.kills += 1


@dataclass
class Seen:
    """What clients of one room were told."""

    room: str = ""
    acknowledged: list[str] = field(default_factory=list)
    events: dict[int, Json] = field(default_factory=dict)
    rent: Json = field(default_factory=lambda: {"tool_policy": {"access": "edit"}})

    def event(self, event: Json) -> None:
        before = self.events.setdefault(event["seq"], event)
        assert before == event, "another event under the same number"


async def converse(gateway: Gateway, seen: Seen, turns: int, words: str = "") -> None:
    """Messages one after another, each answered, or failed with its room; says again what nobody acknowledged."""
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{gateway.port}", trust_env=False, timeout=PATIENCE
    ) as http:

        async def ask(method: str, path: str, body: Json | None = None) -> Json:
            while True:
                try:
                    answer = await http.request(method, path, json=body)
                    if answer.status_code == 503:
                        answer.raise_for_status()  # in a cluster: the rooms move to another gateway
                    assert answer.status_code in (200, 201, 202, 409), answer.text
                    envelope: Json = answer.json()
                    return envelope
                except LOST:
                    await asyncio.sleep(0.05)

        while not seen.room:
            rented = await ask("POST", "/llm/room", seen.rent)
            seen.room = rented["data"]["id"]
        path = f"/llm/room/{seen.room}"
        while len(seen.acknowledged) < turns:
            said = await ask("POST", f"{path}/messages", {"content": f"{len(seen.acknowledged)}{words}"})
            if said["success"]:
                seen.acknowledged.append(said["data"]["id"])
            elif said["code"] == "room_failed":
                await ask("POST", f"{path}/wake")
            else:  # the one before was acknowledged to nobody, and is there all the same
                assert said["code"] == "message_queued", said
            await settled(http, seen)


async def settled(http: httpx.AsyncClient, seen: Seen) -> None:
    """Follows the room, over every break, until no message of it is under way; a sleeping one must be woken."""
    path = f"/llm/room/{seen.room}"
    while True:
        try:
            shown = (await http.get(path)).raise_for_status().json()["data"]
            rests = shown["status"] not in ("active", "releasing")
            # A resting room has all its events; a working one is followed until it rests or its gateway is killed.
            events = f"{path}/events?follow={str(not rests).lower()}"
            async for event in _events(http, events, max(seen.events, default=0)):
                seen.event(event)
                if event["event_type"] == "room:idle":
                    break
            if rests:
                return
        except LOST:
            await asyncio.sleep(0.05)


async def _events(http: httpx.AsyncClient, path: str, after: int) -> AsyncIterator[Json]:
    async with http.stream("GET", path, headers={"last-event-id": str(after)}) as stream:
        stream.raise_for_status()
        expected = after + 1
        async for line in stream.aiter_lines():
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                assert event["seq"] == expected, "an event is missing, or came twice"
                expected += 1
                yield event


async def gateway_is_right(gateway: Gateway, seen: list[Seen]) -> None:
    failed = 0
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{gateway.port}", trust_env=False, timeout=PATIENCE
    ) as http:
        for room in seen:
            await settled(http, room)
            history = (await http.get(f"/llm/room/{room.room}/history?limit=10000")).json()["data"]
            events: dict[int, Any] = {event["seq"]: event for event in history["events"]}
            assert sorted(events) == list(range(1, len(events) + 1))
            # Whatever a follower has seen was durable.
            assert {seq: events[seq] for seq in room.events} == room.events
            messages = {message["id"]: message for message in history["messages"]}
            assert set(room.acknowledged) <= set(messages), "an acknowledged message is lost"
            outputs = [message["in_reply_to"] for message in history["messages"] if message["kind"] == "output"]
            assert len(set(outputs)) == len(outputs), "a message was answered twice"
            for id in room.acknowledged:
                assert messages[id]["status"] in ("done", "failed"), messages[id]
                if messages[id]["status"] == "done":
                    assert id in outputs
                else:
                    failed += 1
                    told = [event for event in history["events"] if event["message_id"] == id]
                    assert any(event["event_type"] == "error" for event in told)
            ran = [event["payload"]["call_id"] for event in history["events"] if event["event_type"] == "tool:call"]
            assert not room.rent or len(ran) >= len(outputs)
    print(f"{gateway.kills} kills, {sum(len(room.acknowledged) for room in seen)} acknowledged, {failed} failed")


@contextlib.contextmanager
def database(kind: str) -> Any:
    if kind == "sqlite":
        yield ""
        return
    with start() as server:
        yield f"store: {server.database()}"

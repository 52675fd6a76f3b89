"""A room's whole life on the real small model, through a real `ctxgate serve` and the commands of `ctxgate room`."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Connection

from gateway.features.rooms.schemas import Actor, Rent
from gateway.features.rooms.transaction import Transaction
from gateway.store import Store
from tests.cli.commands import answering, config, ctxgate, serving
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.rooms.running import House, real_house
from tests.support.rooms import add_released


@pytest.fixture
async def rooms(tmp_path: Path, test_model: Path) -> AsyncIterator[House]:
    async with real_house(tmp_path, test_model, "rooms: {idle_seconds: 0.2}") as house:
        yield house


async def test_the_life_of_a_room(rooms: House) -> None:
    room = await rooms.rent(tool_policy={"access": "edit", "allow": ["tool.mkdir"]})
    said = await rooms.say(room, "Create the folder /notes")
    types, outputs = [], []
    async for event in rooms.follow(room):
        types.append(event["event_type"])
        if event["event_type"] == "agent:output":
            outputs.append(event["payload"])
    # The stream has ended by itself: an idle room falls asleep, and its worker detaches.
    assert [event_type for event_type in types if event_type != "agent:update"] == [
        *("room:rented", "room:message", "room:active", "agent:turn_start"),
        *("agent:model_call", "agent:message", "tool:call", "tool:result"),
        *("agent:model_call", "agent:message", "agent:output", "agent:turn_end", "room:idle", "room:sleeping"),
    ]
    history = await rooms.history(room)
    (result,) = (event["payload"] for event in history["events"] if event["event_type"] == "tool:result")
    assert result["name"] == "tool.mkdir"
    assert result["result"] == {"path": "/notes", "created": True}
    assert [output["in_reply_to"] for output in outputs] == [said["id"]]
    assert [message["kind"] for message in history["messages"]] == ["task", "output"]

    assert (await rooms.post(room, "wake"))["status"] == "active"
    await rooms.until(room, "room:idle", history["events"][-1]["seq"])
    released = await rooms.post(room, "release")
    assert released["status"] == "released"
    assert (await rooms.post(room, "messages", 409, content="Hello"))["code"] == "room_released"


async def test_the_commands(rooms: House, tmp_path: Path) -> None:
    new = await asyncio.to_thread(ctxgate, "room", "new", "--name", "talk", cwd=tmp_path)
    room = new.stdout.strip()
    said = await asyncio.to_thread(ctxgate, "room", "say", "talk", "Say blue penguin", cwd=tmp_path)
    assert (said.returncode, said.stdout) == (0, "blue penguin\n"), said.stderr
    watched = await asyncio.to_thread(ctxgate, "room", "watch", room, "--json", cwd=tmp_path)
    events = [json.loads(line) for line in watched.stdout.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["event_type"] == "room:sleeping"
    shown = await asyncio.to_thread(ctxgate, "room", "watch", "talk", "--after", "3", cwd=tmp_path)
    assert shown.stdout.startswith("4 agent:turn_start")
    history = await asyncio.to_thread(ctxgate, "room", "history", "talk", cwd=tmp_path)
    assert history.stdout == "user: Say blue penguin\ntalk-agent: blue penguin\n"
    released = await asyncio.to_thread(ctxgate, "room", "release", "talk", cwd=tmp_path)
    assert released.stdout == "released\n"
    gone = await asyncio.to_thread(ctxgate, "room", "say", "talk", "Hello", cwd=tmp_path)
    assert (gone.returncode, "no rooms are named 'talk'" in gone.stderr) == (2, True)


async def test_stopping_the_gateway_ends_the_streams(tmp_path: Path) -> None:
    port = free_port()
    echo = "active_model: e\nmodels: {e: {runtime: echo}}\n"
    config(tmp_path, f"{echo}state_dir: {tmp_path}/state\nserver: {{port: {port}}}\n")
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=PATIENCE) as http:
        with serving(tmp_path) as process, answering(port):
            rooms = House(None, None, http)  # type: ignore[arg-type]
            room = await rooms.rent()
            seen = []
            async for event in rooms.follow(room):
                seen.append(event["event_type"])
                process.send_signal(signal.SIGTERM)
            # The stream came to its end, and didn't break.
            assert seen == ["room:rented"]


async def test_the_commands_see_every_open_room_and_all_of_its_past(tmp_path: Path) -> None:
    """Behind any number of released ones, and also where one answer has no room for it."""
    port, rooms = free_port(), 1001
    echo = "active_model: e\nmodels: {e: {runtime: echo}}\n"
    config(tmp_path, f"{echo}state_dir: {tmp_path}/state\nserver: {{port: {port}}}\nrooms: {{max_rooms: 2000}}\n")

    def fill(connection: Connection) -> str:
        named = Transaction.rent(connection, "local", "me", Rent(metadata={"name": "notes"}), [Actor()])
        for number in range(10_004):
            named.event("agent:update", {"text": str(number)})
        named.save()
        for _ in range(rooms):
            Transaction.rent(connection, "local", "me", Rent(), [Actor()]).save()
        add_released(connection, rooms)
        return named.id

    store = await Store.open(f"sqlite:///{tmp_path}/state/ctxgate.db")
    room = await store.write(fill)
    await store.aclose()
    with serving(tmp_path), answering(port):
        history = await asyncio.to_thread(ctxgate, "room", "history", "notes", "--json", cwd=tmp_path)
        found = json.loads(history.stdout)
        assert (found["room"]["id"], found["more"]) == (room, False)
        assert [event["seq"] for event in found["events"]] == list(range(1, 10_006))


def test_the_cli_reports_a_missing_gateway(tmp_path: Path) -> None:
    config(tmp_path, f"active_model: e\nmodels: {{e: {{runtime: echo}}}}\nserver: {{port: {free_port()}}}\n")
    nobody = ctxgate("room", "new", cwd=tmp_path)
    assert (nobody.returncode, "no gateway answers" in nobody.stderr) == (69, True)

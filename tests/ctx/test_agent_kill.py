"""kill -9 while an agent works, in each state of its turn: its events stay gapless, a tool that isn't idempotent runs
once, and the session goes on from its room's side."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.ctx.kept import Client
from tests.ctx.served import Tree, tree
from tests.gateway.double import Double, Exchange
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.rooms.running import calls, speaks

STATES = (
    "agent:turn_start",
    "agent:model_call",
    "agent:message",
    "tool:call",
    "tool:result",
    "agent:output",
    "room:idle",
)
"""A kill comes right after the client has seen, or the room has recorded, that event."""


async def engine(exchange: Exchange) -> None:
    """Makes a folder named by the message, then answers."""
    if exchange.path.endswith("/responses"):
        await exchange.whole({"error": {"message": "no such path"}}, 404)
        return
    messages = exchange.json["messages"]
    if messages[-1]["role"] == "tool":
        await speaks("It ", "is ", "made.", tokens=3)(exchange)
    else:
        await calls(("fs_mkdir", {"path": f"/{messages[-1]['content']}"}))(exchange)


def config(double: Double, port: int) -> dict[str, Any]:
    return {
        "active_model": "m",
        "models": {"m": {"runtime": "openai", "base_url": f"http://127.0.0.1:{double.address.port}"}},
        "server": {"port": port},
        "ctx": {"agents": {"maker": {"tools": {"access": "edit", "allow": ["fs.mkdir"]}}}},
    }


async def history(http: httpx.AsyncClient, session: str) -> dict[str, Any] | None:
    try:
        rooms = (await http.get("/llm/room?limit=1000")).json()["data"]
        for room in rooms:
            if room["metadata"].get("name") == f"maker-{session}":
                found: dict[str, Any] = (await http.get(f"/llm/room/{room['id']}/history?limit=10000")).json()["data"]
                return found
    except (httpx.TransportError, KeyError):
        pass
    return None


async def killed_at(state: str, made: Tree, http: httpx.AsyncClient, session: str, work: Path) -> None:
    """Sends a message, kills the gateway once the room has the event, and starts it again."""
    async with Client(made.root / "agent/maker.sock") as client:
        await client.ask(op="send", id="m1", session=session, cwd=str(work), input=session)
        async with asyncio.timeout(PATIENCE):
            while True:
                found = await history(http, session)
                if found is not None and state in [event["event_type"] for event in found["events"]]:
                    break
                await asyncio.sleep(0.005)
        await asyncio.to_thread(made.kill)
    await asyncio.to_thread(made.start)


async def settled(http: httpx.AsyncClient, session: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await history(http, session)
            if found is not None and found["room"]["status"] not in ("active", "releasing"):
                return found
            await asyncio.sleep(0.02)


async def resumed(made: Tree, session: str) -> list[dict[str, Any]]:
    """All events of a session, as a client that resumes gets them."""
    async with Client(made.root / "agent/maker.sock") as client:
        await client.ask(op="resume", session=session)
        await client.ask(op="ping")
        return (await client.until("pong"))[:-1]


async def is_right(made: Tree, http: httpx.AsyncClient, session: str, work: Path) -> None:
    found = await settled(http, session)
    events = found["events"]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    # `fs.mkdir` isn't idempotent: a second run would say that the folder exists.
    results = [event["payload"] for event in events if event["event_type"] == "tool:result"]
    codes = [result["result"].get("error", {}).get("code") for result in results]
    assert set(codes) <= {None, "tool_interrupted"}, codes
    begun = [event["payload"]["call_id"] for event in events if event["event_type"] == "tool:call"]
    assert len(set(begun)) == len(begun), "a call ran twice"
    assert (work / session).is_dir() or "tool_interrupted" in codes
    assert len([message for message in found["messages"] if message["kind"] == "output"]) <= 1

    told = await resumed(made, session)
    assert [event["type"] for event in told].count("done") == 1
    places = [tuple(int(part) for part in event["id"].removeprefix("event-").split(".")) for event in told]
    assert [place[0] for place in places] == sorted(place[0] for place in places)
    assert len({event["id"] for event in told}) == len(told)

    # It goes on from the room's side, and the socket's clients see that.
    more = f"{session}-more"
    room = found["room"]["id"]
    if found["room"]["status"] == "failed":
        await http.post(f"/llm/room/{room}/wake", json={})
    said = await http.post(f"/llm/room/{room}/messages", json={"content": more})
    assert said.status_code == 202, said.text
    await settled(http, session)
    assert (work / more).is_dir()
    again = await resumed(made, session)
    assert again[: len(told)] == told
    assert again[-1] | {"id": ""} == {"type": "done", "id": "", "run": again[-1]["run"], "status": "ok"}
    async with Client(made.root / "agent/maker.sock") as client:
        await client.ask(op="send", id="m1", session=session, cwd=str(work), input=session)
        assert (await client.frame())["id"] in {event["id"] for event in told}  # a retry isn't answered again


async def scenario(short: Path, states: Sequence[str]) -> None:
    async with Double(engine).serve() as double:
        port = free_port()
        with tree(short, config(double, port), start=False) as made:
            work = short / "w"
            work.mkdir()
            await asyncio.to_thread(made.start)
            async with httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=PATIENCE
            ) as http:
                for number, state in enumerate(states):
                    session = f"s{number}"
                    await killed_at(state, made, http, session, work)
                    await is_right(made, http, session, work)


async def test_killed_while_it_works(short: Path) -> None:
    await scenario(short, ("agent:model_call", "tool:call"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_killed_a_hundred_times(short: Path) -> None:
    await scenario(short, [STATES[number % len(STATES)] for number in range(100)])


def test_the_states_are_events_of_rooms() -> None:
    described = (Path(__file__).parents[2] / "gateway/features/rooms/design.md").read_text("utf-8")
    assert all(state in described for state in STATES), json.dumps(STATES)

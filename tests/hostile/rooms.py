"""Rooms of a gateway under attack: rented, spoken to, and what their tools answered."""

from __future__ import annotations

import time
from typing import Any

from tests.gateway.double import Exchange, Script
from tests.hostile.running import Gateway
from tests.patience import PATIENCE
from tests.rooms.running import calls, speaks

Json = dict[str, Any]


def room(gateway: Gateway, access: str = "full") -> str:
    rented = gateway.ask("POST", "/llm/room", {"tool_policy": {"access": access}})
    assert rented.status == 201
    return str(rented.json["data"]["id"])


def turn(gateway: Gateway, room: str) -> list[Json]:
    """Says something, and waits for the end of the turn; its events."""
    assert gateway.ask("POST", f"/llm/room/{room}/messages", {"content": "Hi"}).status == 202
    return rested(gateway, room)


def rested(gateway: Gateway, room: str) -> list[Json]:
    deadline = time.monotonic() + PATIENCE
    while gateway.ask("GET", f"/llm/room/{room}").json["data"]["status"] in ("active", "releasing"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    events: list[Json] = gateway.ask("GET", f"/llm/room/{room}/history?limit=10000").json["data"]["events"]
    return events


def results(events: list[Json]) -> list[Json]:
    return [event["payload"] for event in events if event["event_type"] == "tool:result"]


def once(name: str, arguments: Json | str) -> Script:
    """A model that calls a tool and is content with any result."""

    async def script(exchange: Exchange) -> None:
        ends = exchange.json["messages"][-1]["role"] == "tool" or "refused" in str(exchange.json["messages"][-1])
        await (speaks("Done.") if ends else calls((name, arguments)))(exchange)

    return script

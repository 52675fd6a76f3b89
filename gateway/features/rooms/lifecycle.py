"""`room.*`: the tools by which a model asks its own room to sleep or to be released.

A tool only acknowledges. The room reads the request from the recorded `tool:result`, also after a restart, and follows
it when the turn ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.features.agents.tools import Tool, ToolContext
from gateway.features.rooms.schemas import Event


async def _idle(context: ToolContext, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"status": "accepted", "reason": arguments.get("reason", "")}


async def _release(context: ToolContext, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"status": "accepted", "mode": arguments.get("mode", "graceful")}


IDLE = Tool(
    name="room.idle",
    description="Let this room go to sleep once the present turn has settled.",
    parameters={
        "type": "object",
        "properties": {"reason": {"type": "string", "maxLength": 1000, "description": "Why the room can rest."}},
        "additionalProperties": False,
    },
    access="full",
    effect="write",
    idempotent=True,
    cost="local",
    run=_idle,
)

RELEASE = Tool(
    name="room.release",
    description="Release this room for good, once the present turn has come to a safe point.",
    parameters={
        "type": "object",
        "properties": {
            "mode": {
                "enum": ["graceful", "immediate"],
                "description": "graceful (default): when this turn has ended. immediate: after this tool call.",
            }
        },
        "additionalProperties": False,
    },
    access="full",
    effect="write",
    idempotent=True,
    cost="local",
    run=_release,
)

TOOLS = (IDLE, RELEASE)


class Requested:
    """The model's requests to its room in one turn. recorded: the turn's events so far."""

    def __init__(self, recorded: Sequence[Event] = ()) -> None:
        self.idle_reason: str | None = None
        self.release_mode: str | None = None
        for event in recorded:
            self.add(event.event_type, event.payload)

    def add(self, event_type: str, payload: Mapping[str, Any]) -> None:
        if event_type == "tool:result" and payload["ok"]:
            if payload["name"] == IDLE.name:
                self.idle_reason = payload["result"]["reason"]
            elif payload["name"] == RELEASE.name:
                self.release_mode = payload["result"]["mode"]

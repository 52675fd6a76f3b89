"""`room.*`: what a room's model asks of its own room."""

from __future__ import annotations

from typing import Any

from gateway.config import Config
from gateway.tools.base import Tool, ToolContext, ToolRow

IDLE = ToolRow(
    "room.idle",
    "Let this room go to sleep once the present turn has settled.",
    {
        "type": "object",
        "properties": {"reason": {"type": "string", "maxLength": 1000, "description": "Why the room can rest."}},
        "additionalProperties": False,
    },
    "full",
)

RELEASE = ToolRow(
    "room.release",
    "Release this room for good, once the present turn has come to a safe point.",
    {
        "type": "object",
        "properties": {
            "mode": {
                "enum": ["graceful", "immediate"],
                "description": "graceful (default): when this turn has ended. immediate: after this tool call.",
            }
        },
        "additionalProperties": False,
    },
    "full",
)


def tools(config: Config) -> list[Tool]:
    return [Tool(IDLE, _idle), Tool(RELEASE, _release)]


async def _idle(context: ToolContext, arguments: dict[str, Any]) -> dict[str, Any]:
    reason = arguments.get("reason", "")
    context.signals.idle(reason)
    return {"status": "accepted", "reason": reason}


async def _release(context: ToolContext, arguments: dict[str, Any]) -> dict[str, Any]:
    mode = arguments.get("mode", "graceful")
    context.signals.release(mode)
    return {"status": "accepted", "mode": mode}

"""MCP servers' tools in rooms."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gateway.features.agents.settings import MCPServer
from tests.rooms.running import calls, house, speaks
from tests.support.mcp_servers import MISBEHAVING, TIME

ALLOWED = {"access": "edit", "allow": ["time.*", "it.*", "broken.*"]}
SERVERS = {
    "time": MCPServer(command=TIME),
    "it": MCPServer(command=(sys.executable, str(MISBEHAVING))),
    "broken": MCPServer(command=(sys.executable, str(MISBEHAVING), "dies")),
}


def of_type(history: dict[str, Any], kind: str) -> list[Any]:
    return [event["payload"] for event in history["events"] if event["event_type"] == kind]


async def test_a_turn_with_servers(tmp_path: Path) -> None:
    """One answers, one ends during the call, one doesn't start: all of it is told, and the turn goes on."""
    made = calls(("time_get_current_time", {"timezone": "Asia/Tokyo"}), ("it_dies", {}))
    async with house(tmp_path, made, speaks("Done."), mcp=SERVERS) as rooms:
        room = await rooms.rent(tool_policy=ALLOWED)
        await rooms.say(room, "What time is it in Tokyo?")
        await rooms.until(room, "room:idle")
        history = await rooms.history(room)
        offered = [tool["function"]["name"] for tool in rooms.engine.requests[0].json["tools"]]
    assert {"time_get_current_time", "it_echo"} <= {*offered}
    time, died = of_type(history, "tool:result")
    assert (time["name"], time["ok"]) == ("time.get_current_time", True)
    assert json.loads(time["result"]["text"])["timezone"] == "Asia/Tokyo"
    assert (died["name"], died["result"]["error"]["code"]) == ("it.dies", "mcp_interrupted")
    (missing,) = of_type(history, "tool:missing")
    assert (missing["server"], missing["code"]) == ("broken", "mcp_unavailable")
    assert missing["message"] == "the MCP server broken: it ended: exit status 3"
    (end,) = of_type(history, "agent:turn_end")
    assert end["status"] == "done"


async def test_policies_may_name_servers(tmp_path: Path) -> None:
    async with house(tmp_path, speaks("Hi."), mcp=SERVERS) as rooms:
        await rooms.rent(tool_policy={"access": "read", "allow": ["time.get_*"], "deny": ["it.*"]})
        policy = {"access": "read", "allow": ["clock.*"]}
        refused = await rooms.call("POST", "/llm/room", 400, {"tool_policy": policy})
        assert "'clock.*' names no tool" in refused["message"]

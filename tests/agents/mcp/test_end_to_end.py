"""A real model on a real engine calls a real MCP server's tool."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from tests.rooms.running import real_house
from tests.support.mcp_servers import TIME


async def test_a_response(tmp_path: Path, test_model: Path) -> None:
    """The choice forces the call; what the tiny model asks for is its own affair, and the server says so."""
    asked = {
        "input": "What time is it in Asia/Tokyo?",
        "tools": [{"type": "mcp", "server_label": "time"}],
        "tool_choice": {"type": "mcp", "server_label": "time", "name": "get_current_time"},
        "max_output_tokens": 200,
    }
    mcp = f'mcp: {{servers: {{time: {{command: "{shlex.join(TIME)}", allow: [get_current_time]}}}}}}'
    async with real_house(tmp_path, test_model, mcp) as house:
        answer = (await house.http.post("/v1/responses", json=asked)).json()
    listed, call, *_ = answer["output"]
    assert [tool["name"] for tool in listed["tools"]] == ["get_current_time"]
    assert (call["type"], call["name"]) == ("mcp_call", "get_current_time")
    timezone = json.loads(call["arguments"])["timezone"]
    assert isinstance(timezone, str)
    if call["status"] == "completed":
        assert json.loads(call["output"])["timezone"] == timezone
    else:
        assert call["error"].startswith("mcp_tool_failed: Error executing tool get_current_time: Invalid timezone")

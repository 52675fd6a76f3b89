"""A real model on a real engine calls a real MCP server's tool."""

from __future__ import annotations

import json
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.cli.commands import config, serving
from tests.cli.test_commands import answering
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.rooms.running import House
from tests.tools.mcp.test_servers import TIME

CONFIG = """\
active_model: tiny
models:
  tiny:
    runtime: llama.cpp
    path: {model}
    temperature: 0
    context_window: 1024
    threads: 1
    parallel: 1
state_dir: {folder}/state
server: {{port: {port}}}
mcp: {{servers: {{time: {{command: "{time}", allow: [get_current_time]}}}}}}
"""


@pytest.fixture
async def rooms(tmp_path: Path, test_model: Path) -> AsyncIterator[House]:
    port = free_port()
    config(tmp_path, CONFIG.format(model=test_model, folder=tmp_path, port=port, time=shlex.join(TIME)))
    with serving(tmp_path), answering(port):
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=PATIENCE) as http:
            yield House(None, None, http)  # type: ignore[arg-type]


async def test_a_response(rooms: House) -> None:
    """The choice forces the call; what the tiny model asks for is its own affair, and the server says so."""
    asked = {
        "input": "What time is it in Asia/Tokyo?",
        "tools": [{"type": "mcp", "server_label": "time"}],
        "tool_choice": {"type": "mcp", "server_label": "time", "name": "get_current_time"},
        "max_output_tokens": 200,
    }
    answer = (await rooms.http.post("/v1/responses", json=asked)).json()
    listed, call, *_ = answer["output"]
    assert [tool["name"] for tool in listed["tools"]] == ["get_current_time"]
    assert (call["type"], call["name"]) == ("mcp_call", "get_current_time")
    timezone = json.loads(call["arguments"])["timezone"]
    assert isinstance(timezone, str)
    if call["status"] == "completed":
        assert json.loads(call["output"])["timezone"] == timezone
    else:
        assert call["error"].startswith("mcp_tool_failed: Error executing tool get_current_time: Invalid timezone")

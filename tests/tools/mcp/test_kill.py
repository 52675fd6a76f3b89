"""kill -9 of a gateway during a call of an MCP server's tool: only an idempotent one runs again."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import httpx
import pytest

from tests.cli.commands import config
from tests.gateway.double import Double
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.rooms.running import calls, speaks
from tests.rooms.test_kill import Gateway, Seen, settled
from tests.tools.mcp.test_servers import MISBEHAVING

CONFIG = """\
active_model: m
models:
  m: {{runtime: openai, base_url: "http://127.0.0.1:{engine}"}}
state_dir: {folder}/state
mcp: {{servers: {{it: {{command: "{command}", call_seconds: 600}}}}}}
server: {{port: {port}}}
"""


@pytest.mark.parametrize(("tool", "times"), [("marks", 1), ("looks", 2)])
async def test_a_call_that_a_crash_cut_off(tool: str, times: int, tmp_path: Path) -> None:
    called = tmp_path / "called"
    gateway = Gateway(tmp_path, free_port())
    async with Double(calls((f"it_{tool}", {"text": str(called)})), speaks("Done.")).serve() as double:
        command = f"{sys.executable} {MISBEHAVING}"
        addresses = {"engine": double.address.port, "port": gateway.port}
        config(tmp_path, CONFIG.format(folder=tmp_path, command=command, **addresses))
        url = f"http://127.0.0.1:{gateway.port}"
        try:
            async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=PATIENCE) as http:
                await gateway.start()
                rented = await http.post("/llm/room", json={"tool_policy": {"access": "edit", "allow": ["it.*"]}})
                seen = Seen(rented.json()["data"]["id"])
                await http.post(f"/llm/room/{seen.room}/messages", json={"content": "Do it."})
                async with asyncio.timeout(PATIENCE):
                    while not called.exists():  # noqa: ASYNC110 - another process makes it
                        await asyncio.sleep(0.02)
                await asyncio.to_thread(gateway.kill)
                await gateway.start()
                await settled(http, seen)
        finally:
            gateway.kill()
    (result,) = [event["payload"]["result"] for event in seen.events.values() if event["event_type"] == "tool:result"]
    assert called.read_text() == "called\n" * times
    if times == 1:
        assert result["error"]["code"] == "tool_interrupted"
    else:
        assert result["text"] == "again"
    (end,) = [event["payload"] for event in seen.events.values() if event["event_type"] == "agent:turn_end"]
    assert end["status"] == "done"

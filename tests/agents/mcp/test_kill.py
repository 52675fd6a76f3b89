"""kill -9 of a gateway during a call of an MCP server's tool: only an idempotent one runs again, no server lives on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from tests.cli.commands import config
from tests.gateway.double import Double
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.rooms.running import calls, speaks
from tests.support.kills import Gateway, Seen, settled
from tests.support.mcp_servers import MISBEHAVING

CONFIG = """\
active_model: m
models:
  m: {{runtime: openai, base_url: "http://127.0.0.1:{engine}"}}
state_dir: {folder}/state
mcp: {{servers: {{it: {{command: "{command}", call_seconds: 600}}}}}}
server: {{port: {port}}}
"""


@asynccontextmanager
async def calling(tool: str, folder: Path) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient, Seen, Path]]:
    """A gateway, and a room in it whose model has just called the tool, which wrote to the file."""
    called = folder / "called"
    gateway = Gateway(folder, free_port())
    async with Double(calls((f"it_{tool}", {"text": str(called)})), speaks("Done.")).serve() as double:
        command = f"{sys.executable} {MISBEHAVING}"
        addresses = {"engine": double.address.port, "port": gateway.port}
        config(folder, CONFIG.format(folder=folder, command=command, **addresses))
        url = f"http://127.0.0.1:{gateway.port}"
        try:
            async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=PATIENCE) as http:
                await gateway.start()
                rented = await http.post("/llm/room", json={"tool_policy": {"access": "edit", "allow": ["it.*"]}})
                seen = Seen(rented.json()["data"]["id"])
                await http.post(f"/llm/room/{seen.room}/messages", json={"content": "Do it."})
                async with asyncio.timeout(PATIENCE):
                    while not (called.exists() and called.read_text().endswith("\n")):  # noqa: ASYNC110 - another process
                        await asyncio.sleep(0.02)
                yield gateway, http, seen, called
        finally:
            gateway.kill()


@pytest.mark.some(2)
@pytest.mark.parametrize(("tool", "times"), [("marks", 1), ("looks", 2)])
async def test_a_call_that_a_crash_cut_off(tool: str, times: int, tmp_path: Path) -> None:
    async with calling(tool, tmp_path) as (gateway, http, seen, called):
        await asyncio.to_thread(gateway.kill)
        await gateway.start()
        await settled(http, seen)
    (result,) = [event["payload"]["result"] for event in seen.events.values() if event["event_type"] == "tool:result"]
    assert called.read_text() == "called\n" * times
    if times == 1:
        assert result["error"]["code"] == "tool_interrupted"
    else:
        assert result["text"] == "again"
    (end,) = [event["payload"] for event in seen.events.values() if event["event_type"] == "agent:turn_end"]
    assert end["status"] == "done"


async def test_no_server_outlives_its_gateway(tmp_path: Path) -> None:
    """Not even one that reads no more, and so doesn't learn that nobody writes."""
    async with calling("stays", tmp_path) as (gateway, _, _, called):
        server = psutil.Process(int(called.read_text()))
        assert gateway.process is not None
        assert psutil.Process(gateway.process.pid) in server.parents()
        await asyncio.to_thread(gateway.kill)
        try:
            await asyncio.to_thread(server.wait, PATIENCE)
        finally:
            with suppress(psutil.NoSuchProcess):
                server.kill()

"""Codex CLI over WebSocket, which it uses for a provider that says `supports_websockets`."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.features.responses import websocket
from tests.clients.agents import PROGRAMS, TOLD, engine, run
from tests.clients.pages import configured
from tests.gateway.running import running

pytestmark = pytest.mark.clients


async def test_a_turn_with_a_tool(
    clients: Path, home: Path, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = clients / "node/node_modules/.bin/codex"
    if not binary.exists():
        pytest.skip("codex is not installed: scripts/clients node does it")
    served = 0
    serve = websocket.serve

    async def counted(*args: object) -> None:
        nonlocal served
        served += 1
        await serve(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(websocket, "serve", counted)
    program = PROGRAMS["codex"]
    async with running(engine(program.call, window=10**6), tool_call_format="pythonic") as gateway:
        environment |= configured(program.page, gateway.url, "m", home)
        file = Path(environment.get("CODEX_HOME", home / ".codex")) / "config.toml"
        wire = 'wire_api = "responses"\n'
        text = file.read_text()
        assert wire in text
        file.write_text(text.replace(wire, f"{wire}supports_websockets = true\n"))
        output = await run([str(binary), *program.command[1:], "Do it."], environment, tmp_path)
        asked = [exchange.json for exchange in gateway.engine.requests]
    assert "All is done." in output
    assert served > 0
    results = [m["content"] for request in asked for m in request["messages"] if m["role"] == "tool"]
    assert TOLD in results[-1]

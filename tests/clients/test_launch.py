"""`ctxgate launch` with the real programs: it configures each for one start, whatever the person's own files say."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
import yaml

from tests.clients.agents import PROGRAMS, TEXT, engine, run
from tests.clients.pages import configured
from tests.conftest import ROOT
from tests.gateway.double import Double, Exchange
from tests.ports import free_port

pytestmark = pytest.mark.clients

WINDOW = 65536


@pytest.mark.parametrize("name", sorted(PROGRAMS))
async def test_it_answers(name: str, clients: Path, home: Path, environment: dict[str, str], tmp_path: Path) -> None:
    program = PROGRAMS[name]
    binary = program.binary(clients)
    if not binary.exists():
        pytest.skip(f"{program.plain[0]} is not installed: scripts/clients does it")
    folder = tmp_path / "_models"
    folder.mkdir()

    async def theirs(exchange: Exchange) -> None:
        await exchange.whole({"error": {"message": "not this one"}}, 400)

    async with Double(theirs).serve() as elsewhere, Double(engine(None, window=WINDOW)).serve() as model:
        port = free_port()
        served = {"runtime": "openai", "base_url": f"http://127.0.0.1:{model.address.port}"}
        content = {
            "active_model": "small",
            "models": {
                "small": {**served, "context_window": 1024},
                "large": {**served, "context_window": WINDOW, "capabilities": ["text", "tool_calling"]},
            },
            "server": {"port": port, "api_keys": ["${CTXGATE_KEY}"]},
            "state_dir": str(tmp_path / "state"),
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(content))
        # The person's own files and variables name another server.
        own = configured(program.page, f"http://127.0.0.1:{elsewhere.address.port}", "another", home, "their-key")
        if program.page == "claude-code":
            settings = home / ".claude/settings.json"
            settings.parent.mkdir()
            settings.write_text(json.dumps({"env": {n: v for n, v in own.items() if n != "ANTHROPIC_AUTH_TOKEN"}}))
        before = settled(home)
        environment |= own | {
            "PATH": f"{binary.parent}{os.pathsep}{environment['PATH']}",
            "PYTHONPATH": str(ROOT),
            "CTXGATE_KEY": "secret",
        }
        command = [sys.executable, "-m", "gateway", "launch", program.command[0], "--", *program.command[1:], "Do it."]
        output = await run(command, environment, tmp_path)
        assert program.text(output) == TEXT
        assert not elsewhere.requests
        assert model.requests
        after = settled(home)
        assert {file: after[file] for file in before} == before
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


def settled(home: Path) -> dict[Path, object]:
    """The contents of all files. Qwen Code adds the version of its format to its own whenever it reads one without."""
    found: dict[Path, object] = {}
    for file in home.rglob("*.*"):
        if file.name == "settings.json":
            found[file] = {key: value for key, value in json.loads(file.read_text()).items() if key != "$version"}
        elif file.is_file():
            found[file] = file.read_bytes()
    return found

"""`ctxgate doctor --client NAME` with the real clients. The engine is scripted: their prompts are too long for the test
model. It counts what an engine would find cached: what a request shares with the one before, from its start."""

from __future__ import annotations

import asyncio
import json
import os
from itertools import takewhile
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from tests.cli.commands import ctxgate
from tests.clients.agents import PROGRAMS
from tests.gateway.double import Exchange, chunk
from tests.gateway.running import running

pytestmark = pytest.mark.clients

NAMES = {program.page: program.plain[0] for program in PROGRAMS.values()}
BYTES = 4
"""In a token."""


class Engine:
    """changes: writes a number that changes with each request to the front of what it has read."""

    def __init__(self, *, changes: bool) -> None:
        self._changes = changes
        self._count = 0
        self._before = b""

    async def __call__(self, exchange: Exchange) -> None:
        self._count += 1
        asked = exchange.json
        read = json.dumps([asked.get("tools"), asked["messages"]]).encode()
        if self._changes:
            read = b"%d" % self._count + read
        both = zip(self._before, read, strict=False)
        cached = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))
        if asked.get("tools"):
            self._before = read
        usage = {
            "prompt_tokens": len(read) // BYTES,
            "completion_tokens": 1,
            "total_tokens": len(read) // BYTES + 1,
            "prompt_tokens_details": {"cached_tokens": cached // BYTES},
        }
        await exchange.start()
        await exchange.event(chunk("ready"), chunk(reason="stop"), {**chunk(), "choices": [], "usage": usage})
        await exchange.end()


@pytest.mark.parametrize(
    ("name", "changes"),
    [("codex", False), ("claude-code", False), ("opencode", False), ("qwen-code", False), ("codex", True)],
)
async def test_two_turns(name: str, changes: bool, clients: Path, tmp_path: Path) -> None:
    folder = clients / "node/node_modules/.bin"
    if not (folder / NAMES[name]).exists():
        pytest.skip(f"{NAMES[name]} is not installed: scripts/clients node does it")
    async with running(Engine(changes=changes)) as gateway:
        file = tmp_path / "config.yaml"
        content = {
            "active_model": "m",
            "models": {"m": {"runtime": "openai", "base_url": "http://127.0.0.1:9"}},
            "server": {"port": urlsplit(gateway.url).port},
        }
        file.write_text(yaml.safe_dump(content))
        path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        done = await asyncio.to_thread(ctxgate, "doctor", "--config", file, "--client", name, cwd=tmp_path, PATH=path)
    (line,) = [line for line in done.stdout.splitlines() if "two turns:" in line]
    assert line.startswith("note" if changes else "ok"), done.stdout
    assert ("(0 %)" in line) == changes
    assert "of the second turn cached" in line

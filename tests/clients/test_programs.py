"""Coding agents: a text, a tool, and a call that takes long, against the window that their page names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.config import load
from tests.clients.agents import PROGRAMS, SLOW_CALL, TEXT, TOLD, engine, run
from tests.clients.pages import configured, model_of
from tests.conftest import ROOT
from tests.gateway.running import running

pytestmark = pytest.mark.clients


TURNS = ("a text", "a tool", "a long call")
TAKEN = {"qwen": TURNS[:2], "aider": TURNS[:1]}
"""The turns of those that have no tools, or wait for a long call as others do."""


@pytest.mark.parametrize(
    ("name", "turn"),
    [(name, turn) for name in PROGRAMS for turn in TAKEN.get(name, TURNS)],
)
async def test_a_turn(
    name: str, turn: str, clients: Path, home: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    program = PROGRAMS[name]
    binary = program.binary(clients)
    if not binary.exists():
        pytest.skip(f"{program.plain[0]} is not installed: scripts/clients does it")
    folder = tmp_path / "work"
    folder.mkdir()
    calls, slow = turn != "a text", turn == "a long call"
    # Comments as often as a slow model needs them in proportion.
    comments = {"progress_after_seconds": SLOW_CALL / 10, "keep_alive_seconds": SLOW_CALL / 10} if slow else None
    # The window of the model that the page names.
    window = load(ROOT / "_models/config.yaml", {}).models[model_of(program.page)].context_window
    assert window is not None
    script = engine(program.call if calls else None, slow=slow, window=window)
    async with running(script, tool_call_format="pythonic", progress=comments) as gateway:
        environment |= configured(program.page, gateway.url, "m", home)
        output = await run([str(binary), *program.command[1:], "Do it."], environment, folder)
        asked: list[Any] = [exchange.json for exchange in gateway.engine.requests]
    assert program.text(output) == TEXT
    assert all(request["stream"] for request in asked)
    results = [m["content"] for request in asked for m in request["messages"] if m["role"] == "tool"]
    # Some send a result as text, some as parts.
    assert (TOLD in str(results[-1])) if calls else not results

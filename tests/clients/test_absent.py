"""Coding agents that ask for a model that isn't there: they end at once, and show what the gateway says."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gateway.app import build
from gateway.config import Config, Model, PullSource, Server
from tests.clients.agents import PROGRAMS, started, without_colours
from tests.clients.pages import configured
from tests.clients.place import SECONDS, Told
from tests.gateway.running import NO_COMMENTS
from tests.provider.server import serve

pytestmark = pytest.mark.clients

LOADED = 5
"""How much longer that may take on a machine with other work: agents that retry took 68 and 180 s."""


async def screen(command: list[str], environment: dict[str, str], folder: Path) -> tuple[str, float]:
    """All that a client writes, with its colours left out, and when it ended. It must fail."""
    async with started(command, environment, folder, joined=True) as process:
        out, _ = await process.communicate()
        ended = time.monotonic()
    assert process.returncode, out.decode()
    return without_colours(out.decode()), ended


@pytest.mark.parametrize("model", ["gone", "nobody"])
@pytest.mark.parametrize("name", ["codex", "claude", "opencode"])
async def test_it_ends_at_once_with_our_message(
    name: str, model: str, clients: Path, home: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """`gone` is configured, but has no weights; `nobody` isn't configured."""
    program = PROGRAMS[name]
    page, binary = program.page, program.binary(clients)
    if not binary.exists():
        pytest.skip(f"{name} is not installed: scripts/clients node does it")
    path = tmp_path / "gone.gguf"
    gone = Model(name="gone", runtime="llama.cpp", path=path, pull=PullSource(kind="hub", name="owner/name"))
    config = Config(
        source=tmp_path / "config.yaml",
        active_model="echo",
        models={"echo": Model(name="echo", runtime="echo"), "gone": gone},
        state_dir=tmp_path / "state",
        server=Server(**NO_COMMENTS),
    )
    ours = {
        "gone": f"model 'gone': there is no file {path}; `ctxgate pull gone` fetches it",
        "nobody": "there is no model 'nobody'; config.yaml has: echo, gone",
    }
    folder = tmp_path / "work"
    folder.mkdir()
    told = Told(build(config))
    with serve(told, lifespan="on", http="httptools") as url:
        environment |= configured(page, url, model, home)
        shown, ended = await screen([str(binary), *program.plain[1:], "Do it."], environment, folder)
    assert ours[model] in " ".join(shown.split())
    # Nothing is asked twice: opencode also asks for a title of the conversation.
    assert len(told.refusals) in ((1, 2) if page == "opencode" else (1,)), told.refusals
    assert {status for _, status in told.refusals} == {410 if page == "claude-code" else 404}
    assert ended - told.refusals[0][0] < SECONDS * LOADED

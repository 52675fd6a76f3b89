"""Coding agents that ask for a model that isn't there: they end at once, and show what the gateway says."""

from __future__ import annotations

import asyncio
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL

import pytest

from gateway.app import build
from gateway.config import Config, Model, PullSource, Server
from gateway.server.asgi import ASGIApp, Message, Receive, Scope, Send
from tests.clients.pages import configured
from tests.gateway.running import NO_COMMENTS
from tests.patience import PATIENCE
from tests.provider.server import serve

pytestmark = pytest.mark.clients

PROGRAMS = {
    "codex": ("codex", "exec", "--skip-git-repo-check"),
    "claude-code": ("claude", "-p"),
    "opencode": ("opencode", "run"),
}
"""Page of docs/clients → command."""

SECONDS = 3.0
"""From our answer to the end of the client."""
LOADED = 5
"""How much longer that may take on a machine with other work: agents that retry took 68 and 180 s."""


class Told:
    """The gateway, which notes each refusal: when, and with which status."""

    def __init__(self, app: ASGIApp) -> None:
        self.refusals: list[tuple[float, int]] = []
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                self.refusals.append((time.monotonic(), message["status"]))
            await send(message)

        await self._app(scope, receive, noted)


async def screen(command: list[str], environment: dict[str, str], folder: Path) -> tuple[str, float]:
    """All that a client writes, with its colours left out, and when it ended. It must fail."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(PATIENCE):
            out, _ = await process.communicate()
        ended = time.monotonic()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, SIGKILL)
        await process.wait()
    assert process.returncode, out.decode()
    return re.sub(r"\x1b\[[\d;]*m", "", out.decode()), ended


@pytest.mark.parametrize("model", ["gone", "nobody"])
@pytest.mark.parametrize("page", PROGRAMS)
async def test_it_ends_at_once_with_our_message(
    page: str, model: str, clients: Path, home: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """`gone` is configured, but has no weights; `nobody` isn't configured."""
    program, *options = PROGRAMS[page]
    binary = clients / "node/node_modules/.bin" / program
    if not binary.exists():
        pytest.skip(f"{program} is not installed: scripts/clients node does it")
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
        shown, ended = await screen([str(binary), *options, "Do it."], environment, folder)
    assert ours[model] in " ".join(shown.split())
    # Nothing is asked twice: opencode also asks for a title of the conversation.
    assert len(told.refusals) in ((1, 2) if page == "opencode" else (1,)), told.refusals
    assert {status for _, status in told.refusals} == {410 if page == "claude-code" else 404}
    assert ended - told.refusals[0][0] < SECONDS * LOADED

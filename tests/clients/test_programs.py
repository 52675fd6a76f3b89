"""Coding agents that people use, unpatched, configured as docs/clients says.

Their prompts are too much for the small model: the engine is scripted. It writes its calls in a native dialect, so all
of the gateway's way is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from tests.api.asking import said
from tests.clients.pages import configured
from tests.gateway.double import Exchange, Json, Script, chunk
from tests.gateway.running import running
from tests.patience import PATIENCE

pytestmark = pytest.mark.clients

TOLD = "hello-from-tool"


@dataclass(frozen=True)
class Program:
    """page: of docs/clients, whose files and variables it is run with. call: what the model writes to call its shell.
    text: what of its output a person reads."""

    page: str
    command: tuple[str, ...]
    call: str
    text: Callable[[list[Json]], str]


def _of_codex(lines: list[Json]) -> str:
    items = [line["item"] for line in lines if line["type"] == "item.completed"]
    return "".join(item["text"] for item in items if item["type"] == "agent_message")


def _of_claude(lines: list[Json]) -> str:
    return str(lines[-1]["result"])


def _of_opencode(lines: list[Json]) -> str:
    return "".join(line["part"]["text"] for line in lines if line["type"] == "text")


PROGRAMS = {
    "codex": Program(
        "codex",
        ("codex", "exec", "--skip-git-repo-check", "--json"),
        f'exec_command(cmd="echo {TOLD}")',
        _of_codex,
    ),
    "claude": Program(
        "claude-code",
        ("claude", "--output-format", "stream-json", "--verbose", "--allowedTools", "Bash", "-p"),
        f'Bash(command="echo {TOLD}", description="Say it")',
        _of_claude,
    ),
    "opencode": Program(
        "opencode",
        ("opencode", "run", "--format", "json"),
        f'bash(command="echo {TOLD}", description="Say it")',
        _of_opencode,
    ),
}


SLOW_CALL = float(os.environ.get("CTXGATE_SLOW_CALL", "4"))
"""Seconds in which the engine writes the 2,000 tokens of a long call: 100 is as slow as a small machine is."""


async def slowly(exchange: Exchange, call: str) -> None:
    """A call of 2,000 tokens: the command ends in a long comment. The gateway holds it until it is complete."""
    begin, mark, rest = call.partition(TOLD)
    tokens = [f"[{begin}", mark, " #", *[" word"] * 2000, f"{rest}]"]
    await exchange.start()
    await exchange.event(chunk("<|tool_call_start|>"))
    for token in tokens:
        await exchange.event(chunk(token))
        await asyncio.sleep(SLOW_CALL / len(tokens))
    await exchange.event(chunk("<|tool_call_end|>"), chunk(reason="stop"))
    await exchange.end()


def engine(call: str | None, *, slow: bool = False) -> Script:
    """Answers the first turn with the call, if there is one, and what comes after it with a text."""

    async def script(exchange: Exchange) -> None:
        asked = exchange.json
        past = [message["role"] for message in asked["messages"]]
        if call is not None and slow and asked.get("tools") and "tool" not in past:
            await slowly(exchange, call)
        elif call is not None and asked.get("tools") and "tool" not in past:
            await said(chunk("<|tool_call_start|>"), chunk(f"[{call}]"), chunk("<|tool_call_end|>"))(exchange)
        else:
            await said(chunk("All "), chunk("is "), chunk("done."))(exchange)

    return script


async def run(command: list[str], environment: dict[str, str], folder: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(PATIENCE):
            out, errors = await process.communicate()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, SIGKILL)
        await process.wait()
    assert process.returncode == 0, (out + errors).decode()
    return out.decode()


@pytest.mark.parametrize("turn", ["a text", "a tool", "a long call"])
@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_turn(
    name: str, turn: str, clients: Path, home: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    program = PROGRAMS[name]
    binary = clients / "node/node_modules/.bin" / program.command[0]
    if not binary.exists():
        pytest.skip(f"{program.command[0]} is not installed: scripts/clients node does it")
    folder = tmp_path / "work"
    folder.mkdir()
    calls, slow = turn != "a text", turn == "a long call"
    # Comments as often as a slow model needs them in proportion.
    comments = {"progress_after_seconds": SLOW_CALL / 10, "keep_alive_seconds": SLOW_CALL / 10} if slow else None
    script = engine(program.call if calls else None, slow=slow)
    async with running(script, tool_call_format="pythonic", progress=comments) as gateway:
        environment |= configured(program.page, gateway.url, "m", home)
        output = await run([str(binary), *program.command[1:], "Do it."], environment, folder)
        asked: list[Any] = [exchange.json for exchange in gateway.engine.requests]
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert program.text(lines) == "All is done."
    assert all(request["stream"] for request in asked)
    results = [m["content"] for request in asked for m in request["messages"] if m["role"] == "tool"]
    assert (TOLD in results[-1]) if calls else not results

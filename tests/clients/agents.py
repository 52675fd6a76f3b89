"""Coding agents that people use, unpatched, configured as docs/clients says.

Their prompts are too much for the small model: the engine is scripted. It writes its calls in a native dialect, so all
of the gateway's way is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL

from tests.api.asking import said
from tests.clients.pages import configured
from tests.gateway.double import Exchange, Json, Script, chunk
from tests.patience import PATIENCE

TOLD = "hello-from-tool"
TEXT = "All is done."
SHAPED: Mapping[str, str] = {"city": "Paris", "unit": "celsius"}
SCHEMA: Json = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"type": "string"}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
BYTES = 4
"""In a token, about."""


def _lines(output: str) -> list[Json]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def _of_codex(output: str) -> str:
    items = [line["item"] for line in _lines(output) if line["type"] == "item.completed"]
    return "".join(item["text"] for item in items if item["type"] == "agent_message")


def _of_claude(output: str) -> str:
    last = _lines(output)[-1]
    return json.dumps(last["structured_output"]) if "structured_output" in last else str(last["result"])


def _of_opencode(output: str) -> str:
    return "".join(line["part"]["text"] for line in _lines(output) if line["type"] == "text")


def _of_qwen(output: str) -> str:
    return _of_claude(output)


def _of_aider(output: str) -> str:
    return TEXT if TEXT in output.splitlines() else output


@dataclass(frozen=True)
class Program:
    """page: of docs/clients, whose files and variables it is run with. place: below the folder of scripts/clients.
    plain: the command of a person. options: added for what a program can read. call: what the model writes to call its
    shell; None: it has no tools. text: what of its output a person reads. shape: options that ask for JSON of `SCHEMA`,
    which stands in a file. shaped: what the model writes then. cannot: cells that it hasn't, and why."""

    page: str
    plain: tuple[str, ...]
    options: tuple[str, ...]
    call: str | None
    text: Callable[[str], str]
    place: str = "node/node_modules/.bin"
    shape: tuple[str, ...] = ()
    shaped: str = ""
    cannot: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> tuple[str, ...]:
        return (*self.plain, *self.options)

    def binary(self, clients: Path) -> Path:
        return clients / self.place / self.plain[0]


_CALLED = ", ".join(f'{key}="{value}"' for key, value in SHAPED.items())

PROGRAMS = {
    "codex": Program(
        "codex",
        ("codex", "exec", "--skip-git-repo-check"),
        ("--json",),
        f'exec_command(cmd="echo {TOLD}")',
        _of_codex,
        shape=("--output-schema", "FILE"),
        shaped=json.dumps(SHAPED),
    ),
    "claude": Program(
        "claude-code",
        ("claude", "-p"),
        ("--output-format", "stream-json", "--verbose", "--allowedTools=Bash"),
        f'Bash(command="echo {TOLD}", description="Say it")',
        _of_claude,
        shape=("--json-schema", "JSON"),
        shaped=f"StructuredOutput({_CALLED})",
    ),
    "opencode": Program(
        "opencode",
        ("opencode", "run"),
        ("--format", "json"),
        f'bash(command="echo {TOLD}", description="Say it")',
        _of_opencode,
        cannot={"structured": "`opencode run` has no option for a schema"},
    ),
    "qwen": Program(
        "qwen-code",
        ("qwen", "--yolo"),
        ("--output-format", "stream-json"),
        f'run_shell_command(command="echo {TOLD}", description="Say it", is_background=False)',
        _of_qwen,
        shape=("--json-schema", "JSON"),
        shaped=f"structured_output({_CALLED})",
    ),
    "aider": Program(
        "aider",
        ("aider", "--no-git", "--yes-always", "--analytics-disable", "--no-pretty", "--message"),
        (),
        None,
        _of_aider,
        place="aider/bin",
        cannot={
            "tools": "it edits by text, and sends no tools",
            "structured": "it has no option for a schema",
        },
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


def engine(call: str | None, *, slow: bool = False, window: int) -> Script:
    """Answers the first turn with the call, if there is one, and what comes after it with a text. What begins with `{`
    is written as it stands instead, each time.

    window: it refuses a longer prompt, as vLLM does.
    """

    async def script(exchange: Exchange) -> None:
        asked = exchange.json
        tokens = len(exchange.body) // BYTES
        if tokens > window:
            words = f"This model's maximum context length is {window} tokens. However, your request has {tokens}."
            await exchange.whole({"error": {"message": words}}, 400)
            return
        past = [message["role"] for message in asked["messages"]]
        if call is not None and call.startswith("{"):
            await said(chunk(call))(exchange)
        elif call is not None and slow and asked.get("tools") and "tool" not in past:
            await slowly(exchange, call)
        elif call is not None and asked.get("tools") and "tool" not in past:
            await said(chunk("<|tool_call_start|>"), chunk(f"[{call}]"), chunk("<|tool_call_end|>"))(exchange)
        else:
            await said(chunk("All "), chunk("is "), chunk("done."))(exchange)

    return script


@asynccontextmanager
async def started(
    command: list[str], environment: dict[str, str], folder: Path, *, joined: bool = False
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A client in a session of its own, which ends with the block. joined: its stderr comes with its stdout."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT if joined else asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(PATIENCE):
            yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, SIGKILL)
        await process.wait()


async def run(command: list[str], environment: dict[str, str], folder: Path) -> str:
    async with started(command, environment, folder) as process:
        out, errors = await process.communicate()
    assert process.returncode == 0, (out + errors).decode()
    return out.decode()


def without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)


def settle(page: str, url: str, model: str, home: Path, key: str) -> dict[str, str]:
    """What the page tells to write and to set, with a key. Returns the variables."""
    variables = configured(page, url, model, home, key)
    if page == "codex":
        file, wire = home / ".codex/config.toml", 'wire_api = "responses"\n'
        text = file.read_text()
        assert wire in text
        file.write_text(text.replace(wire, f'{wire}env_key = "CTXGATE_KEY"\n'))
        variables["CTXGATE_KEY"] = key
    return variables

"""docs/clients/table.md: what each client can do with the gateway, found out by running it.

`python -m tests.clients.table [NAME ...]` runs the named clients, else all, which scripts/clients installs (the largest
with `scripts/clients table`); keeps what came in tests/clients/table.json, and writes the page.

The gateway is real, and asks for a key. The libraries' model is the real test model, on the real engine; coding agents
send more than it can take, so their engine is scripted. So is the one that never ends, for clients that leave.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from tests.clients.agent_cells import agent
from tests.clients.place import CELLS, CLASSES, ERRORS, KEY, MODEL, SECONDS, WORDS, YES, Place, Result, Row, left, place
from tests.clients.surroundings import environment_of, installed
from tests.conftest import ROOT
from tests.gateway.double import Json
from tests.patience import PATIENCE

TEST_MODEL = ROOT / "_models/test/ctxgate-test-tools.gguf"
CITIES, UNITS = ("Paris", "Oslo"), ("celsius", "fahrenheit")
HELLO = "Hello! How can I help you?"
PROGRAMS = Path(__file__).parent / "cells"
KEPT = Path(__file__).parent / "table.json"
PAGE = ROOT / "docs/clients/table.md"


@dataclass(frozen=True)
class Client:
    """page: of docs/clients, if it has one. package: whose version the table shows. environment: of scripts/clients,
    which has it. program: of tests/clients/cells; none for coding agents: `tests.clients.agent_cells`
    runs those."""

    name: str
    package: str
    environment: str
    program: str = ""
    page: str = ""


CLIENTS: tuple[Client, ...] = (
    Client("openai (Python)", "openai", "python", "of_openai.py", "openai"),
    Client("openai (node)", "openai", "node", "of_openai.mjs", "openai"),
    Client("anthropic", "anthropic", "python", "of_anthropic.py", "anthropic"),
    Client("openai-agents", "openai-agents", "python", "of_openai_agents.py", "openai-agents"),
    Client("LangChain", "langchain-openai", "python", "of_langchain.py", "langchain"),
    Client("LiteLLM", "litellm", "python", "of_litellm.py", "litellm"),
    Client("llm", "llm", "python", "of_llm.py", "llm"),
    Client("instructor", "instructor", "python", "of_instructor.py", "instructor"),
    Client("ollama", "ollama", "python", "of_ollama.py", "ollama"),
    Client("pydantic-ai", "pydantic-ai-slim", "frameworks", "of_pydantic_ai.py", "pydantic-ai"),
    Client("Vercel AI SDK", "ai", "node", "of_vercel_ai_sdk.mjs", "vercel-ai-sdk"),
    Client("LangChain.js", "@langchain/openai", "node", "of_langchain_js.mjs", "langchain-js"),
    Client("llama-index", "llama-index-llms-openai-like", "llama-index", "of_llama_index.py", "llama-index"),
    Client("smolagents", "smolagents", "frameworks", "of_smolagents.py"),
    Client("dspy", "dspy", "frameworks", "of_dspy.py"),
    Client("crewai", "crewai", "crewai", "of_crewai.py"),
    Client("lm-eval", "lm_eval", "lm-eval", "of_lm_eval.py"),
    Client("Codex CLI", "@openai/codex", "node", page="codex"),
    Client("Claude Code", "@anthropic-ai/claude-code", "node", page="claude-code"),
    Client("opencode", "opencode-ai", "node", page="opencode"),
    Client("Qwen Code", "@qwen-code/qwen-code", "node", page="qwen-code"),
    Client("aider", "aider-chat", "aider", page="aider"),
)


def pinned(client: Client) -> str:
    """The version that scripts/clients installs."""
    if client.environment == "node":
        found = json.loads((Path(__file__).parent / "package.json").read_text())["dependencies"]
        return str(found[client.package])
    lines = (Path(__file__).parent / f"environments/{client.environment}.txt").read_text().splitlines()
    names = {line.partition("==")[0].partition("[")[0]: line.partition("==")[2] for line in lines if "==" in line}
    return names[client.package]


def is_installed(client: Client) -> bool:
    folder = installed() / client.environment
    return (folder / "bin/python").exists() or (folder / "node_modules" / client.package).is_dir()


def judge(cell: str, line: Json) -> Result:
    """line: what a program said of the cell."""
    if "cannot" in line:
        return Result("cannot", line["cannot"])
    if cell in ERRORS:
        return _error(cell, line)
    if "error" in line:
        return Result("no", f"{line['error'][0]}: {line['text'][:200]}")
    got = line["got"]
    if cell == "cancel":
        return Result("yes", got or "")
    if cell == "tools" and len(got) == 3:
        arguments, text, remark = got
        return Result("yes", remark) if arguments["city"] == "Paris" and text else Result("no", f"{got!r}"[:200])
    right: dict[str, list[Any]] = {
        "chat": [HELLO],
        "stream": [HELLO],
        "tools": [[{"city": "Paris", "unit": "celsius"}, "The result is 21."]],
        "structured": [{"city": city, "unit": unit} for city in CITIES for unit in UNITS],
    }
    return YES if got in right[cell] else Result("no", f"{got!r}"[:200])


def _error(cell: str, line: Json) -> Result:
    if "error" not in line:
        return Result("no", f"no error, but {line['got']!r}"[:200])
    name = line["error"][0]
    known = next((one for one in line["error"] if any(part in one for part in CLASSES[cell])), None)
    if known is None and not any(words in line["text"] for words in WORDS[cell]):
        return Result("no", line["text"][:200])
    seconds = round(line["seconds"], 1)
    if seconds > SECONDS:
        return Result("no", f"{known or name} after {seconds:g} s", seconds)
    return Result("yes", known or name, seconds)


async def library(client: Client, where: Place) -> Row:
    """Runs the program of a library."""
    folder = installed()
    python = [str(folder / client.environment / "bin/python")]
    command = ["node"] if client.program.endswith(".mjs") else python
    row: Row = {}
    with tempfile.TemporaryDirectory() as home:
        process = await asyncio.create_subprocess_exec(
            *command,
            str(PROGRAMS / client.program),
            where.url,
            KEY,
            MODEL,
            str(folder),
            cwd=home,
            env=environment_of(Path(home)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=2**22,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        errors = asyncio.ensure_future(process.stderr.read())
        try:
            async with asyncio.timeout(PATIENCE):
                while text := await process.stdout.readline():
                    # Libraries write of their own.
                    if not text.startswith(b'{"cell"'):
                        continue
                    line = json.loads(text)
                    row[line["cell"]] = judge(line["cell"], line)
                    if line["cell"] == "cancel" and "cannot" not in line:
                        if row["cancel"].state == "yes":
                            row["cancel"] = await left(where.endless, row["cancel"].seen)
                        process.stdin.write(b"\n")
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    if set(row) != set(CELLS):
        raise RuntimeError(f"{client.name} ended before its last cell:\n{(await errors).decode()[-4000:]}")
    return row


def load_kept() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else {}
    return found


def entry(client: Client, row: Row, day: date) -> Json:
    cells = {cell: {key: value for key, value in vars(row[cell]).items() if value not in ("", None)} for cell in CELLS}
    return {"version": pinned(client), "run": day.isoformat(), "cells": cells}


HEAD = """\
# What each client does with the gateway

`python -m tests.clients.table` runs each client, unpatched, in the version named, and writes this page; a test compares
the two. The gateway is real and requires a key. Libraries use the real test model (2 MB, a window of 1,024 tokens) on
the real engine. Coding agents send longer prompts than that model takes, so a scripted engine answers them, through the
same gateway; their overflow cell is from the real engine.

- **cancel**: the client leaves a stream, and the engine stops within 3 s.
- **overflow**, **wrong key**, **missing weights**: the client shows the actual error, within 3 s of its request (an
  agent: of the gateway's answer), with its own retries on. The cell has the class that the library raises, or what the
  program prints.
- A number refers to a note below about something that the client itself can't do, or does in its own way.
"""


def render(kept: Mapping[str, Json]) -> str:
    notes: dict[str, list[str]] = {}
    lines = [f"| client | version | {' | '.join(CELLS)} |", f"|---|---|{'---|' * len(CELLS)}"]
    for client in CLIENTS:
        if client.name in kept:
            row = kept[client.name]
            name = f"[{client.name}]({client.page}.md)" if client.page else client.name
            shown = [_shown(client, cell, row["cells"][cell], notes) for cell in CELLS]
            lines.append(f"| {name} | {row['version']} | {' | '.join(shown)} |")
    days = sorted({row["run"] for row in kept.values()})
    below = [f"{number}. {', '.join(names)}: {note}." for number, (note, names) in enumerate(notes.items(), 1)]
    return "\n".join([HEAD, *lines, "", *below, "", f"Run on {' and '.join(days)}.", ""])


def _shown(client: Client, cell: str, result: Json, notes: dict[str, list[str]]) -> str:
    """notes: what the cells' numbers lead to, with the clients; adds this one's."""
    seen, state = str(result.get("seen", "")), result["state"]
    if state == "yes" and cell in ERRORS:
        return f"`{seen}`" if client.program else f'"{seen}"'
    if state == "yes" and not seen:
        return "yes"
    names = notes.setdefault(seen, [])
    if client.name not in names:
        names.append(client.name)
    return f"{'—' if state == 'cannot' else state} ({[*notes].index(seen) + 1})"


async def rows(clients: Sequence[Client]) -> AsyncIterator[tuple[Client, Row]]:
    """The clients, one after another; libraries first."""
    for noting in (False, True):
        chosen = [client for client in clients if noting != bool(client.program)]
        if not chosen:
            continue
        with tempfile.TemporaryDirectory() as folder:
            async with place(TEST_MODEL, Path(folder), noting=noting) as where:
                for client in chosen:
                    yield client, await (library(client, where) if client.program else agent(client.page, where))


def keep(kept: Mapping[str, Json]) -> None:
    ordered = {client.name: kept[client.name] for client in CLIENTS if client.name in kept}
    KEPT.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", "utf-8")
    PAGE.write_text(render(ordered), "utf-8")


async def main(names: Sequence[str]) -> None:
    chosen = [client for client in CLIENTS if (client.name in names or not names) and is_installed(client)]
    async for client, row in rows(chosen):
        for cell, result in row.items():
            print(f"{client.name}, {cell}: {result.state} {result.seen} {result.seconds or ''}".rstrip(), flush=True)
        keep(load_kept() | {client.name: entry(client, row, datetime.now(UTC).date())})


if __name__ == "__main__":
    # A shell's background job ignores it, and so would the clients that are interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asyncio.run(main(sys.argv[1:]))

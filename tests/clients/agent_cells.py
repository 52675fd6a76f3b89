"""The cells of docs/clients/table.md that coding agents fill: programs, which show a person what they print."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from signal import SIGINT

from tests.clients.agents import PROGRAMS, SCHEMA, SHAPED, TEXT, TOLD, Program, engine, settle, started, without_colours
from tests.clients.place import (
    AGENTS,
    CELLS,
    CLASSES,
    ENDLESS,
    GONE,
    KEY,
    MODEL,
    SECONDS,
    WORDS,
    WRONG_KEY,
    YES,
    Place,
    Result,
    Row,
    left,
)
from tests.clients.surroundings import environment_of, installed

ROOM = 10**6
"""Tokens: no request is too long for the scripted engine."""
ALSO: dict[str, tuple[str, ...]] = {
    "overflow": ("prompt is too long", "ran out of room in the model's context window", "has hit a token limit"),
    "wrong key": ("failed to authenticate", "not able to authenticate", "invalid api key"),
    "missing weights": (),
}
"""In lower case: how the programs themselves call these errors."""


async def agent(page: str, where: Place) -> Row:
    program = next(one for one in PROGRAMS.values() if one.page == page)
    row: Row = {}
    for cell in CELLS:
        if cell in program.cannot:
            row[cell] = Result("cannot", program.cannot[cell])
            continue
        with tempfile.TemporaryDirectory() as folder:
            row[cell] = await _Cell(program, where, Path(folder)).fill(cell)
    return row


class _Cell:
    def __init__(self, program: Program, where: Place, folder: Path) -> None:
        self._program, self._where = program, where
        self._home, self._work = folder / "home", folder / "work"
        for each in (self._home, self._work):
            each.mkdir()

    async def fill(self, cell: str) -> Result:
        match cell:
            case "chat" | "stream":
                return await self._chat(cell)
            case "tools":
                return await self._tools()
            case "structured":
                return await self._structured()
            case "cancel":
                return await self._cancel()
        model = {"overflow": MODEL, "missing weights": GONE}.get(cell, AGENTS)
        return await self._error(cell, model, WRONG_KEY if cell == "wrong key" else KEY)

    def _command(self, model: str, key: str, command: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
        variables = settle(self._program.page, self._where.url, model, self._home, key)
        binary = self._program.binary(installed())
        return [str(binary), *command[1:], "Do it."], environment_of(self._home) | variables

    async def _run(self, call: str | None, *more: str) -> tuple[str, list[dict[str, object]]]:
        """What the program prints for a person, and the requests that its engine got."""
        self._where.script.append(engine(call, window=ROOM))
        before = len(self._where.scripted.requests)
        command, environment = self._command(AGENTS, KEY, (*self._program.command, *more))
        async with started(command, environment, self._work) as process:
            out, errors = await process.communicate()
        asked = [exchange.json for exchange in self._where.scripted.requests[before:]]
        try:
            return self._program.text(without_colours(out.decode())), asked
        except (LookupError, ValueError):
            return (out + errors).decode(), asked

    async def _chat(self, cell: str) -> Result:
        text, asked = await self._run(None)
        if text.strip() != TEXT:
            return Result("no", text[-200:])
        if cell == "stream" and not all(request.get("stream") for request in asked):
            return Result("no", "it asks for whole answers")
        return YES

    async def _tools(self) -> Result:
        text, asked = await self._run(self._program.call)
        results = [m for request in asked for m in _messages(request) if m["role"] == "tool"]
        if text.strip() != TEXT or not results or TOLD not in str(results[-1]["content"]):
            return Result("no", text[-200:])
        return YES

    async def _structured(self) -> Result:
        file = self._work.parent / "schema.json"
        file.write_text(json.dumps(SCHEMA))
        given = {"FILE": str(file), "JSON": json.dumps(SCHEMA)}
        text, _ = await self._run(self._program.shaped, *(given.get(option, option) for option in self._program.shape))
        try:
            return YES if json.loads(text) == SHAPED else Result("no", text[-200:])
        except ValueError:
            return Result("no", text[-200:])

    async def _cancel(self) -> Result:
        engine = self._where.endless
        before = len(engine.requests)
        command, environment = self._command(ENDLESS, KEY, self._program.plain)
        async with started(command, environment, self._work, joined=True) as process:
            await engine.asked(before + 1)
            os.killpg(process.pid, SIGINT)
            return await left(engine)

    async def _error(self, cell: str, model: str, key: str) -> Result:
        words = tuple(word.lower() for word in (*WORDS[cell], *CLASSES[cell], *ALSO[cell]))
        before = len(self._where.told.refusals)
        # Should it ask the scripted engine all the same.
        self._where.script.append(engine(None, window=ROOM))
        command, environment = self._command(model, key, self._program.plain)
        printed, line = "", ""
        async with started(command, environment, self._work, joined=True) as process:
            assert process.stdout is not None
            while more := await process.stdout.read(1 << 16):
                printed = without_colours(printed + more.decode(errors="replace"))
                if line := _line(printed, words):
                    break
            now = time.monotonic()
        refusals = self._where.told.refusals[before:]
        if not refusals:
            return Result("no", "it asked for nothing")
        seconds = round(now - refusals[0][0], 1)
        if not line:
            return Result("no", printed[-200:], seconds)
        if seconds > SECONDS:
            return Result("no", f"{line} after {seconds:g} s", seconds)
        return Result("yes", line, seconds)


def _messages(request: dict[str, object]) -> list[dict[str, object]]:
    messages = request["messages"]
    assert isinstance(messages, list)
    return messages


def _line(printed: str, words: tuple[str, ...]) -> str:
    """The first of the words that is printed, wherever the program breaks its lines."""
    text = " ".join(printed.split())
    for word in words:
        at = text.lower().find(word)
        if at >= 0:
            return text[at : at + len(word)]
    return ""

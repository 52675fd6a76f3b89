"""The runner of an executed object: reads its call and its input, writes what it prints and its exit code.

`client.py` describes the frames. The gateway parses the command line and renders the text, so that the runner needs
neither.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from gateway.config import Role
from gateway.errors import GatewayError, ProviderInvalidRequest
from gateway.features.ctx.availability import word
from gateway.features.ctx.command import STDIN, USAGES, Caller, Command, File, Words, ignored_stdin, joined, parse
from gateway.features.ctx.errors import EXIT_CODES, GENERIC, TooLong, code
from gateway.features.ctx.events import Done, Error, Event, Media, Start, Status, line
from gateway.features.ctx.execution import Ended, Execution, until
from gateway.features.ctx.frames import check_run
from gateway.features.ctx.objects import Kind, ObjectName, Triple
from gateway.features.ctx.projection import projection
from gateway.features.ctx.prompt import Prompt
from gateway.features.ctx.rendering import Text, ToolText
from gateway.features.ctx.tools.execution import ToolExecution
from gateway.features.ctx.tools.projected import usage as tool_usage
from gateway.features.ctx.tree import read_control, read_text
from gateway.services import Services
from gateway.wire.text import printable, printable_json

if TYPE_CHECKING:
    from gateway.features.ctx.connection import Wire
    from gateway.features.media.uploads import Upload

VERSION = b"1"
LONGEST_CALL = 4 * 1024 * 1024
"""Bytes: twice what Linux passes to a program."""
LONGEST_PIECE = 64 * 1024
TEXTS: tuple[Role, ...] = ("chat", "embedding", "rerank")
"""Roles of models whose input and answer are text."""
OUTPUTS = {"speech": "sound", "image": "a picture"}
"""What the answer of such a model is, if it isn't text."""
LOADING_SECONDS = 1.0
"""Seconds after which the caller learns that the model is loading."""


@dataclass(frozen=True, slots=True)
class Call:
    """An executed object. object: kind/name, as its path has it."""

    object: str
    run: str
    caller: Caller
    arguments: list[str]

    @classmethod
    def read(cls, payload: bytes) -> Call:
        """Raises ProviderInvalidRequest."""
        known, *fields = payload.split(b"\0")
        if known != VERSION or len(fields) < 6:
            raise ProviderInvalidRequest(
                "the runner of this tree is from another version of ctxgate: run ctxgate ctx sync"
            )
        try:
            object, name, run, folder, streams, form, *arguments = (field.decode() for field in fields)
        except UnicodeDecodeError:
            raise ProviderInvalidRequest("the input is not valid UTF-8") from None
        one, two, three = (*streams, "o", "o", "o")[:3]
        return cls(object, run, Caller(name, folder, (one, two, three), form), arguments)


class RunnerConnection:
    """One executed object. The runner may cancel."""

    def __init__(self, wire: Wire, root: Path, services: Services, ended: Ended) -> None:
        self._wire = wire
        self._root = root
        self._services = services
        self._ended = ended
        self._text: Text | None = None
        self._upload: Upload | None = None

    async def serve(self) -> None:
        run, name = "r1", ""
        try:
            kind, payload = await self._wire.packet(LONGEST_CALL)
            if kind != "h":
                raise ProviderInvalidRequest(
                    "the runner of this tree is from another version of ctxgate: run ctxgate ctx sync"
                )
            call = Call.read(payload)
            run, name = call.run, call.caller.name
            await self._call(call)
        except GatewayError as error:
            await self._fail(run, name, error)
        except asyncio.IncompleteReadError:
            pass  # the runner is gone

    async def _call(self, call: Call) -> None:
        object = ObjectName.parse(call.object)
        triple = Triple.of(self._root, object)
        role = await self._role(triple)
        if role in OUTPUTS and not call.caller.form:
            call = replace(call, caller=replace(call.caller, form="text"))
        # Before the options are known, the form of an error is that of a call without options.
        command = parse(object.kind, [], call.caller)
        self._set_form(object.kind, command, call.caller)
        command = parse(object.kind, call.arguments, call.caller)
        self._set_form(object.kind, command, call.caller)
        check_run(call.run)
        if command.asked == "version":
            await self._print(f"ctxgate {version('ctxgate')}\n")
        elif command.asked == "help":
            await self._print(await self._usage(triple, call.caller))
        elif call.caller.on_terminal and not call.arguments:
            await self._without_input(triple, call)
        else:
            if warning := ignored_stdin(command, call.caller):
                await self._wire.write([frame("e", warning + "\n")])
            if role in OUTPUTS and command.form == "text" and call.caller.streams[1] == "t":
                raise ProviderInvalidRequest(f"the answer is {OUTPUTS[role]}: send it to a file or a program")
            try:
                await self._run(triple, call, command, role)
            finally:
                if self._upload is not None:
                    self._upload.close()

    async def _role(self, triple: Triple) -> Role:
        """What the model does whose object it is: known before the command line is read, since that depends on it."""
        config = self._services.gateway.config
        if triple.name.kind != "model" or all(model.role in TEXTS for model in config.models.values()):
            return "chat"
        try:
            name = projection(config).objects.get((await asyncio.to_thread(read_control, triple)).id)
        except GatewayError:
            return "chat"  # the run says why
        return config.models[name].role if name is not None else "chat"

    def _set_form(self, kind: Kind, command: Command, caller: Caller) -> None:
        terminal = caller.streams[1] == "t"
        if command.form != "text":
            self._text = None
        elif kind == "tool":
            self._text = ToolText(terminal=terminal)
        else:
            self._text = Text(terminal=terminal, calls="err" if kind == "agent" else "out")

    async def _print(self, text: str, exit_code: int = 0) -> None:
        await self._wire.write([frame("o", text), frame("x", str(exit_code))])

    async def _usage(self, triple: Triple, caller: Caller) -> str:
        about = ""
        if triple.name.kind == "tool":
            files = [triple.control / name for name in ("description", "schema")]
            description, schema = [await asyncio.to_thread(read_text, file) for file in files]
            about = tool_usage(description.strip(), msgspec.json.decode(schema or "{}"))
        return printable(USAGES[triple.name.kind].format(name=caller.name, about=about))

    async def _without_input(self, triple: Triple, call: Call) -> None:
        """On a terminal: a conversation; with a tool, its usage."""
        if triple.name.kind == "tool":
            await self._print(await self._usage(triple, call.caller))
            return
        program = [sys.executable, "-m", "gateway.features.ctx.terminal", str(self._root), str(triple.name)]
        await self._wire.write([frame("r", "\0".join(program))])

    # Input

    async def _input(self, command: Command) -> str:
        """The whole input. Raises ProviderInvalidRequest for what can't be read or isn't text."""
        maximum = self._services.gateway.config.server.max_body_bytes
        texts: list[tuple[Words | File, str]] = []
        for part in command.parts:
            text = part.text if isinstance(part, Words) else await self._file(part.path, maximum)
            maximum -= len(text)
            texts.append((part, text))
        return joined(texts)

    async def _file(self, path: str, maximum: int) -> str:
        pieces: list[bytes] = []
        size = 0
        async for piece in self._pieces(path):
            size += len(piece)
            if size > maximum:
                raise TooLong(f"the input exceeds server.max_body_bytes ({maximum} bytes are left)")
            pieces.append(piece)
        try:
            return b"".join(pieces).decode()
        except UnicodeDecodeError:
            raise ProviderInvalidRequest(f"{_named(path)} is not valid UTF-8") from None

    async def _pieces(self, path: str) -> AsyncIterator[bytes]:
        """The content of a file of the caller's. Raises ProviderInvalidRequest if it can't be read."""
        await self._wire.write([frame("i", path)])
        while True:
            kind, payload = await self._wire.packet(LONGEST_PIECE)
            if kind == "f":
                raise ProviderInvalidRequest(f"{_named(path)} can't be read: {payload.decode(errors='replace')}")
            if kind != "d" or not payload:
                return
            yield payload

    async def _sound(self, command: Command) -> Upload:
        """The file that the input is. Raises ProviderInvalidRequest."""
        from gateway.features.media.uploads import StoredFile, Uploads  # few calls need it

        if len(command.parts) != 1 or not isinstance(part := command.parts[0], File):
            raise ProviderInvalidRequest("the input is sound: one file, with -f or on standard input")
        self._upload = upload = self._services.shared(Uploads).begin()
        async for piece in self._pieces(part.path):
            upload.body.has(upload.size + len(piece))
            await upload.write(piece)
        if not upload.size:
            raise ProviderInvalidRequest(f"{_named(part.path)} is empty: the input is sound")
        await upload.flush()
        name = "sound" if part.path == STDIN else Path(part.path).name
        upload.files.append(StoredFile("file", name, "application/octet-stream", 0, upload.size))
        return upload

    async def _schema(self, given: str) -> str:
        """The text of --schema: itself, or that of the file it names."""
        return given if given.lstrip().startswith("{") else await self._file(given, LONGEST_CALL)

    # A run

    async def _run(self, triple: Triple, call: Call, command: Command, role: Role) -> None:
        events = await self._events(triple, call, command, role)
        stop = asyncio.Event()
        cancelled: list[Event] = [Done(run=call.run, status="cancelled")]
        listening = asyncio.create_task(self._listen(stop))
        waiting = asyncio.create_task(self._tell_loading(triple, call))
        outcome = Outcome()
        try:
            async with aclosing(until(stop, events, lambda: cancelled)) as batches:
                async for batch in batches:
                    outcome.add(batch)
                    if outcome.answered:
                        waiting.cancel()
                    frames = self._frames(batch)
                    if isinstance(batch[-1], Done):
                        frames.append(frame("x", str(outcome.exit_code)))
                    if frames:
                        await self._wire.write(frames)
        finally:
            for task in (listening, waiting):
                task.cancel()
            await asyncio.wait({listening, waiting})
            self._ended(triple, None, call.run, outcome.status)

    async def _events(
        self, triple: Triple, call: Call, command: Command, role: Role
    ) -> AsyncGenerator[list[Event], None]:
        """The events of the run. Reads the input. Raises GatewayError before the run has begun."""
        execution = Execution(
            self._services, triple, "exec", call.run, self._services.gateway.config.server.max_body_bytes
        )
        if role == "transcription":
            return replace(execution, upload=await self._sound(command)).events({})
        text = await self._input(command)
        if triple.name.kind == "tool":
            return ToolExecution(self._services, triple, call.run, call.caller.folder).events(text)
        if triple.name.kind == "agent":
            from gateway.features.ctx.agents.execution import (
                AgentExecution,  # it imports the rooms, which most calls don't need
            )

            return AgentExecution(self._services, triple, self._root, call.run, call.caller.folder).events(text)
        schema = await self._schema(command.schema) if command.schema is not None else None
        return execution.events(Prompt(text, command.system, schema))

    async def _tell_loading(self, triple: Triple, call: Call) -> None:
        """Says once, on standard error, that the model is loading: to people, not to programs."""
        if triple.name.kind != "model" or (self._text is None and call.caller.streams[2] != "t"):
            return
        await asyncio.sleep(LOADING_SECONDS)
        gateway = self._services.gateway
        try:
            id = (await asyncio.to_thread(read_control, triple)).id
        except GatewayError:
            return  # the run says why
        if (status := word(gateway, projection(gateway.config).objects, id)) in ("stopped", "starting"):
            await self._wire.write([frame("e", f"{call.caller.name}: loading {id} ({status}) ...\n")])

    async def _listen(self, stop: asyncio.Event) -> None:
        """Sets `stop` when the runner cancels or is gone."""
        with suppress(asyncio.IncompleteReadError, ProviderInvalidRequest):
            await self._wire.packet(LONGEST_PIECE)
        stop.set()

    # Output

    def _frames(self, batch: list[Event]) -> list[bytes]:
        if self._text is None:
            return [frame("o", _lines(batch))]
        frames = []
        for event in batch:
            if isinstance(event, Media):
                frames.append(frame("o", event.data))
            frames += [frame("o" if stream == "out" else "e", text) for stream, text in self._text.feed(event)]
        return frames

    async def _fail(self, run: str, name: str, error: GatewayError) -> None:
        exit_code = EXIT_CODES.get(code(error), GENERIC)
        if self._text is not None:
            frames = [frame("e", printable(f"{code(error)}: {error.message}\n"))]
        else:
            failed: list[Event] = [
                Error(run=run, code=code(error), message=error.message),
                Done(run=run, status="error"),
            ]
            frames = [frame("o", _lines(failed))]
        await self._wire.write([*frames, frame("x", str(exit_code))])


class Outcome:
    """What becomes of a run: its exit code and status."""

    def __init__(self) -> None:
        self.exit_code = 0
        self.status: Status = "error"
        self.answered = False
        """Whether there is more than its start."""

    def add(self, batch: list[Event]) -> None:
        for event in batch:
            self.answered = self.answered or not isinstance(event, Start)
            if isinstance(event, Error):
                self.exit_code = EXIT_CODES.get(event.code, GENERIC)
            elif isinstance(event, Done):
                self.status = event.status
                if event.status == "cancelled":
                    self.exit_code = GENERIC


def _named(path: str) -> str:
    return "the input" if path == STDIN else path


def _lines(events: list[Event]) -> str:
    return printable_json(b"".join(map(line, events)).decode())


def frame(kind: Literal["o", "e", "i", "r", "x"], payload: str | bytes) -> bytes:
    data = payload if isinstance(payload, bytes) else payload.encode(errors="replace")
    return b"%b%d\n%b" % (kind.encode(), len(data), data)

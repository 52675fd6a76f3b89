"""Responses whose model calls the tools of MCP servers: the gateway runs the calls, in one bounded turn.

Loaded only for responses with such tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, cast

from gateway.api.streaming import Opened, StreamedAnswer
from gateway.core import Run
from gateway.core.in_thread import in_thread_if_large
from gateway.errors import GatewayError, ProviderInvalidRequest, ProviderInvalidResponse
from gateway.features.agents.settings import Rooms
from gateway.features.agents.tools import Catalogue, Toolbox, ToolContext, ToolPolicy
from gateway.features.agents.tools.mcp.servers import Servers
from gateway.features.agents.turn import Bounds, Step, ToolAnswered, Turn
from gateway.features.responses.endpoints import Begin, ResponseInProgress
from gateway.features.responses.wire.request import CreateResponse, Item, ToolTable, chat_fields
from gateway.provider import (
    AssistantMessage,
    Delta,
    FinishReason,
    Message,
    Response,
    RuntimeConfig,
    TextDelta,
    Tool,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from gateway.server.http import Request
from gateway.wire.allowed_tools import freed
from gateway.wire.chat import ChatRequest, decode, encode
from gateway.wire.pieces import CallArguments, CallStart, End, TextPiece, pieces
from gateway.wire.pieces import UsagePiece as Used
from gateway.wire.text import short

Events = list[dict[str, Any]]
Hear = Callable[[Events], Awaitable[None]]

QUEUE = 64
"""How many batches of events may wait for a slow client before the turn waits, too."""

LIMITS = {"output_tokens": "max_output_tokens", "tool_calls": "max_tool_calls"}
"""Bound of the turn → reason of an incomplete response; others name themselves."""


async def join(request: Request, tools: ToolTable) -> Begin:
    """Adds the tools of the servers that the request names; see `gateway.features.responses.endpoints.Join`.

    Raises ProviderInvalidRequest.
    """
    servers = {server.name: server for server in request.services.shared(Servers).present()}
    for wanted in tools.servers:
        if wanted.label not in servers:
            known = ", ".join(servers) or "none"
            place = f"{wanted.place}.server_label"
            message = f"{place}: there is no MCP server {short(wanted.label)}; config.yaml has: {known}"
            raise ProviderInvalidRequest(message, param=place)
    asked = [wanted for wanted in tools.servers if wanted.allowed is None or wanted.allowed]
    sources = [servers[wanted.label] for wanted in asked]
    policies = [ToolPolicy("read" if wanted.read_only else "full", (f"{wanted.label}.*",)) for wanted in asked]
    every = ToolPolicy("full", tuple(glob for policy in policies for glob in policy.allow))
    toolbox = await Catalogue([], lambda: sources).toolbox(every, ToolContext())
    for wanted, policy in zip(asked, policies, strict=True):
        for tool in toolbox.tools.values():
            name = tool.name.partition(".")[2]
            if policy.permits(tool) and (wanted.allowed is None or name in wanted.allowed):
                tools.add_remote(wanted.label, name, tool.description, tool.parameters)

    def begin(answer: ResponseInProgress, wanted: CreateResponse, said: list[Item]) -> RemoteTurn:
        return RemoteTurn(request, answer, wanted, said, toolbox)

    return begin


class RemoteTurn:
    """One answer made of several model calls: the encoding of its stream, and the turn that writes it."""

    ping = b""
    unchanged = False

    def __init__(
        self, request: Request, answer: ResponseInProgress, wanted: CreateResponse, said: list[Item], toolbox: Toolbox
    ) -> None:
        """said: all items up to this answer."""
        self.headers = answer.headers
        self.comments = answer.comments
        self.encoder = answer.encoder
        self._request = request
        self._answer = answer
        self._wanted = wanted
        self._said = said
        self._toolbox = toolbox

    # An encoding whose source has written the events already.

    def opening(self) -> bytes:
        return b""

    def feed(self, payloads: list[bytes]) -> bytes:
        return b"".join(payloads)

    async def finish(self) -> bytes:
        return b""

    async def fail(self, error: GatewayError) -> bytes:
        return await self._answer.fail(error)

    def stream(self) -> StreamedAnswer:
        self.headers = self._answer.headers
        server = self._request.gateway.config.server
        return StreamedAnswer(self._opened(), self, server, self._answer.chat.serving.describe_now)

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Opened]:
        frames = _Frames()

        async def hear(events: Events) -> None:
            await frames.put(self._answer.write(events))

        async def work() -> None:
            try:
                await hear(await self.run(hear))
            finally:
                frames.end()

        frames.task = asyncio.create_task(work(), name="turn of a response")
        try:
            yield frames, tuple
        finally:
            frames.task.cancel()
            await asyncio.wait({frames.task})

    async def run(self, hear: Hear, began: Callable[[], Awaitable[None]] | None = None) -> Events:
        """Writes the answer: `hear` gets all events but the last, which are returned, once the response is stored.

        began: called once an engine has taken the request; up to then, errors leave no event. Raises GatewayError.
        """
        answer = self._answer

        async def record(step: Step) -> None:
            if isinstance(step, ToolAnswered):
                await hear(answer.encoder.called(step.tool_call.id, *_told(step.result)))

        async def opened() -> None:
            await hear([*answer.open_events(), *self._listed()])
            if began is not None:
                await began()

        model = _Model(self, hear, opened)
        bounds = self._bounds()
        turn = Turn(model, _Tools(answer.tools, self._toolbox), bounds, record, left=self._is_client_s)
        result = await turn.run([])
        limit = None if result.limit is None else LIMITS.get(result.limit, result.limit)
        return await answer.finish_events(limit)

    def _bounds(self) -> Bounds:
        rooms, wanted = self._request.gateway.config.section(Rooms), self._wanted
        calls, tokens = wanted.max_tool_calls, wanted.max_output_tokens
        return Bounds(
            wall_seconds=rooms.turn_seconds,
            model_calls=rooms.turn_model_calls,
            tool_calls=rooms.turn_tool_calls if calls is None else min(rooms.turn_tool_calls, calls),
            output_tokens=rooms.turn_output_tokens if tokens is None else min(rooms.turn_output_tokens, tokens),
        )

    def _is_client_s(self, call: ToolCall) -> bool:
        return self._answer.tools.remote(call.name) is None

    def _listed(self) -> Events:
        """The tools of each server, unless an earlier answer of the conversation listed them."""
        known = {item.get("server_label") for item in self._said if item.get("type") == "mcp_list_tools"}
        events: Events = []
        tools, toolbox, encoder = self._answer.tools, self._toolbox, self._answer.encoder
        declared = [remote for one in tools.declared if (remote := tools.remote(one["function"]["name"]))]
        for label in dict.fromkeys(server.label for server in tools.servers):
            if label in known:
                continue
            missing = toolbox.missing.get(label)
            listed = [_listing(toolbox, *remote) for remote in declared if remote[0] == label]
            events += encoder.listed(label, listed, None if missing is None else missing.message)
        return events

    async def ask(self, asked: int, limit: int | None) -> Run:
        """Calls the model again with everything in the answer so far. asked: how many calls there were before."""
        answer = self._answer
        items = [*self._said, *answer.encoder.response["output"]]

        def translated() -> ChatRequest:
            fields = chat_fields(self._wanted, items, answer.tools)
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
            if limit is not None:
                fields["max_tokens"] = limit
            if asked and "tool_choice" in fields:
                fields["tool_choice"] = freed(fields["tool_choice"])
            return ChatRequest.parse(encode(fields), "responses", answer.chat.caller)

        chat = await in_thread_if_large(answer.chat.size, translated)  # the first one, which had all but the last items
        run = await self._request.gateway.chat(chat)
        answer.chat.serving.settle(chat.serving.tier)
        return run


def _listing(toolbox: Toolbox, label: str, name: str) -> dict[str, Any]:
    tool = toolbox.get(f"{label}.{name}")
    assert tool is not None
    hints = {"read_only": tool.effect == "read", "idempotent": tool.idempotent}
    return {"name": name, "description": tool.description, "input_schema": {**tool.parameters}, "annotations": hints}


def _told(result: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """A result's output and error."""
    error = result.get("error")
    if isinstance(error, Mapping):
        return None, f"{error['code']}: {error['message']}"
    return (f"{result['text']}\n[cut]" if result.get("truncated") else str(result["text"])), None


class _Frames:
    """The source of a stream: events that a task writes, at most QUEUE batches ahead."""

    task: asyncio.Task[None]

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(QUEUE)
        self._ended = asyncio.Event()

    async def put(self, frames: bytes) -> None:
        if frames:
            await self._queue.put(frames)

    def end(self) -> None:
        self._ended.set()

    async def payloads(self) -> list[bytes]:
        """Raises whatever the task raises."""
        if self._queue.empty() and not self._ended.is_set():
            getting = asyncio.ensure_future(self._queue.get())
            ending = asyncio.ensure_future(self._ended.wait())
            try:
                await asyncio.wait({getting, ending}, return_when=asyncio.FIRST_COMPLETED)
                if getting.done():
                    return [getting.result()]
            finally:
                getting.cancel()
                ending.cancel()
        if not self._queue.empty():
            return [self._queue.get_nowait()]
        await self.task
        return []

    def push_to(self, sink: Any) -> None:
        """There is no shortcut."""


class _Tools:
    """The turn's tools. Those that the model may call are in the requests of `_Model`."""

    tools: Sequence[Tool] = ()

    def __init__(self, table: ToolTable, toolbox: Toolbox) -> None:
        self._table = table
        self._toolbox = toolbox

    async def run(self, call: ToolCall) -> Mapping[str, Any]:
        remote = self._table.remote(call.name)
        assert remote is not None
        arguments: Any = call.arguments
        return await self._toolbox.run(".".join(remote), arguments)


class _Model:
    """The model of a turn. It reads the conversation from the response, not from the turn's messages."""

    def __init__(self, turn: RemoteTurn, hear: Hear, opened: Callable[[], Awaitable[None]]) -> None:
        self._turn = turn
        self._hear = hear
        self._opened = opened
        self._asked = 0

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None, config: RuntimeConfig, *, stream: bool
    ) -> _Answering:
        run = await self._turn.ask(self._asked, config.max_tokens)
        self._asked += 1
        try:
            if self._asked == 1:
                await self._opened()
        except BaseException:
            run.close()
            raise
        return _Answering(self._turn, run, self._hear)


class _Answering:
    """One answer: its events go to the client, its deltas and the complete answer to the turn."""

    def __init__(self, turn: RemoteTurn, run: Run, hear: Hear) -> None:
        self._turn = turn
        self._run = run
        self._hear = hear

    async def __aenter__(self) -> AsyncIterator[Delta | Response[None]]:
        return self._deltas()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._run.__exit__(kind, error, trace)

    async def _deltas(self) -> AsyncIterator[Delta | Response[None]]:
        text: list[str] = []
        calls: list[CallStart] = []
        arguments: dict[int, str] = {}
        reason, used = "stop", Used()
        while payloads := await self._run.payloads():
            for payload in payloads:
                found = [*pieces(payload)]
                await self._hear(self._turn.encoder.feed(found))
                for piece in found:
                    match piece:
                        case TextPiece():
                            text.append(piece.text)
                            yield TextDelta(piece.text)
                        case CallStart():
                            calls.append(piece)
                        case CallArguments():
                            arguments[piece.index] = arguments.get(piece.index, "") + piece.json
                            yield ToolCallDelta(piece.index, None, None, piece.json)
                        case End():
                            reason = piece.reason
                        case Used():
                            used = piece
        await self._hear(self._turn.encoder.paused())
        if not calls and not text:
            raise ProviderInvalidResponse("the model wrote nothing", code="empty_answer")
        made = [ToolCall(call.id, call.name, _arguments(arguments.get(call.index, ""))) for call in calls]
        usage = Usage(used.prompt, used.completion, used.prompt + used.completion) if used.completion else Usage()
        yield Response(AssistantMessage("".join(text), made), cast(FinishReason, reason), usage, {}, None)


def _arguments(written: str) -> Any:
    """The arguments' value; the toolbox refuses anything but an object."""
    try:
        return decode(written.encode() or b"{}")
    except (ValueError, RecursionError):
        return None

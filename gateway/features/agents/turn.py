"""One bounded turn of an agent: model calls and tool calls, until the model has answered.

It does no I/O itself: the provider asks the model and `Tools` run its calls. `record` gets each step before the next
one begins, so a turn that was cut off can be resumed from the record.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Literal, Protocol, TypeAlias

from gateway.errors import GatewayError, ProviderInvalidResponse
from gateway.provider import (
    AssistantMessage,
    Delta,
    Message,
    Response,
    Retry,
    RuntimeConfig,
    TextDelta,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolMessage,
    Usage,
    UserMessage,
)

Limit = Literal["wall_time", "model_calls", "tool_calls", "output_tokens"]
Outcome = Literal["completed", "limited", "stopped"]

REFUSED_CHARS = 500
"""The most characters of a refused call, and of the reason."""

UPDATE_SECONDS = 0.25
"""Seconds between two records of text that the model is still writing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The most that one turn may use."""

    wall_seconds: float = 300.0
    model_calls: int = 16
    tool_calls: int = 32
    output_tokens: int = 8192

    def __getitem__(self, limit: Limit) -> float:
        return self.wall_seconds if limit == "wall_time" else int(getattr(self, limit))


@dataclass(frozen=True, slots=True)
class ModelCalled:
    """A model call begins. call: its number in the turn, from 1."""

    call: int


@dataclass(frozen=True, slots=True)
class TextGrew:
    """The model has written more text."""

    call: int
    text: str


@dataclass(frozen=True, slots=True)
class ModelAnswered:
    call: int
    message: AssistantMessage
    finish_reason: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class ModelFailed:
    """A model call failed in a way that may pass. The next one begins in `seconds`."""

    call: int
    error: GatewayError
    seconds: float


@dataclass(frozen=True, slots=True)
class CallRefused:
    """The model called an unknown tool, or with invalid arguments. It gets to see `reason`."""

    call: int
    name: str
    arguments: str
    reason: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class ToolCalled:
    tool_call: ToolCall


@dataclass(frozen=True, slots=True)
class ToolAnswered:
    tool_call: ToolCall
    result: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LimitReached:
    limit: Limit
    bound: float


Step: TypeAlias = (
    ModelCalled | TextGrew | ModelAnswered | ModelFailed | CallRefused | ToolCalled | ToolAnswered | LimitReached
)


class Answering(Protocol):
    """A model's answer as it comes: deltas, and the whole Response last."""

    async def __aenter__(self) -> AsyncIterator[Delta | Response[None]]: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Model(Protocol):
    """What a turn asks: an `OpenAIProvider`, or what stands for one."""

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None,
        config: RuntimeConfig,
        *,
        stream: Literal[True],
    ) -> Answering:
        """Raises GatewayError."""
        ...


class Tools(Protocol):
    """The tools that the model may call."""

    @property
    def tools(self) -> Sequence[Tool]: ...

    async def run(self, call: ToolCall) -> Mapping[str, Any]:
        """Runs a call; returns its JSON result. A failure is a result, too."""
        ...


class Window(Protocol):
    """What the model sees of a conversation, so that it fits the model's context window."""

    async def fit(self, turn: Sequence[Message], tools: Sequence[Tool]) -> Sequence[Message]:
        """The messages to send. turn: those of this turn. Raises GatewayError."""
        ...

    def exceeded(self, error: GatewayError) -> bool:
        """Learns that what `fit` returned was too long. False if nothing more can be left out."""
        ...


@dataclass(frozen=True, slots=True)
class Result:
    outcome: Outcome
    text: str
    """The model's last text."""
    limit: Limit | None = None


@dataclass(slots=True)
class Used:
    """What a turn has used so far."""

    model_calls: int = 0
    tool_calls: int = 0
    output_tokens: int = 0
    usage: dict[str, int] = field(default_factory=lambda: {"input": 0, "output": 0, "total": 0})


class _Reached(Exception):
    def __init__(self, limit: Limit) -> None:
        self.limit = limit


class Turn:
    """Run it once. `used` may be read at any time."""

    def __init__(
        self,
        provider: Model,
        tools: Tools,
        bounds: Bounds,
        record: Callable[[Step], Awaitable[None]],
        *,
        stop: Callable[[], bool] = lambda: False,
        config: RuntimeConfig | None = None,
        used: Used | None = None,
        window: Window | None = None,
        retry: Retry | None = None,
        left: Callable[[ToolCall], bool] = lambda call: False,
    ) -> None:
        """stop: asked at the safe points between two steps; True ends the turn. used: before the turn was cut off.

        window: chooses what the model sees; without it, all messages. retry: of model calls that fail; None: none.
        left: whether a call is left to the caller; after such a call the turn ends, once the others have their results.
        """
        self.used = used or Used()
        self._provider = provider
        self._tools = tools
        self._bounds = bounds
        self._record = record
        self._stop = stop
        self._left = left
        self._config = config or RuntimeConfig()
        self._window = window
        self._retry = retry or Retry(max_attempts=1)
        self._failures = 0
        """Model calls that have failed since the last one that succeeded."""
        self._text = ""
        self._answer: _Answer | None = None

    async def run(self, messages: Sequence[Message]) -> Result:
        """Runs the turn. `messages` end with the user's message, or with what a turn that was cut off had recorded.

        Raises GatewayError if the model can't be asked, and what `record` raises. Cancelling ends the model's work.
        """
        conversation = list(messages)
        try:
            async with asyncio.timeout(self._bounds.wall_seconds) as deadline:
                return await self._run(conversation)
        except TimeoutError:
            if not deadline.expired():
                raise
            return await self._limited("wall_time")
        except _Reached as reached:
            return await self._limited(reached.limit)

    async def _run(self, conversation: list[Message]) -> Result:
        await self._answer_calls(conversation)
        while not self._stop():
            before = len(conversation)
            finish_reason = await self._ask(conversation)
            if finish_reason == "again":
                continue
            if finish_reason == "empty":
                return Result("completed", self._text)
            if finish_reason == "length" and self.used.output_tokens >= self._bounds.output_tokens:
                raise _Reached("output_tokens")
            await self._answer_calls(conversation)
            if len(conversation) == before + 1 or self._leaves(conversation[before]):
                return Result("completed", self._text)
        return Result("stopped", self._text)

    def _leaves(self, message: Message) -> bool:
        return isinstance(message, AssistantMessage) and any(map(self._left, message.tool_calls))

    async def _limited(self, limit: Limit) -> Result:
        await self._record(LimitReached(limit, self._bounds[limit]))
        return Result("limited", (self._answer and self._answer.text) or self._text, limit)

    async def _ask(self, conversation: list[Message]) -> str:
        """Asks the model and appends its answer, or the refusal of an invalid call. Returns the finish reason,
        `empty`, `invalid`, or `again` after a failure that may pass.
        """
        used = self.used
        if used.model_calls >= self._bounds.model_calls:
            raise _Reached("model_calls")
        if (left := self._bounds.output_tokens - used.output_tokens) <= 0:
            raise _Reached("output_tokens")
        used.model_calls += 1
        number = used.model_calls
        await self._record(ModelCalled(number))
        limit = min(left, self._config.max_tokens or left)
        answer = self._answer = _Answer(number, self._record)
        try:
            sent = conversation if self._window is None else await self._window.fit(conversation, self._tools.tools)
            response = await answer.read(self._provider, sent, self._tools.tools, self._config, limit)
        except ProviderInvalidResponse as error:
            if error.code == "empty_answer":
                await self._record(ModelAnswered(number, AssistantMessage(), "stop", Usage()))
                return "empty"
            if not (answer.calls and error.code == "invalid_tool_call"):
                raise
            return await self._refuse(answer, error, conversation)
        except GatewayError as error:
            used.output_tokens += answer.deltas
            if error.code == "context_length_exceeded" and self._window is not None and self._window.exceeded(error):
                used.model_calls -= 1  # the model has read nothing
                return "again"
            if not await self._wait(number, error):
                raise
            return "again"
        self._failures = 0
        # If the server counts no tokens, each delta counts as one.
        count = response.usage.completion_tokens
        used.output_tokens += answer.deltas if count is None else count
        for name, tokens in (
            ("input", response.usage.prompt_tokens),
            ("output", count),
            ("total", response.usage.total_tokens),
        ):
            used.usage[name] += tokens or 0
        self._text = response.message.text or self._text
        await self._record(ModelAnswered(number, response.message, response.finish_reason, response.usage))
        conversation.append(response.message)
        return response.finish_reason

    async def _refuse(self, answer: _Answer, error: GatewayError, conversation: list[Message]) -> str:
        """Tells the model that its call is invalid."""
        used = self.used
        used.tool_calls += 1
        used.output_tokens += answer.deltas
        index = min(error.details.get("index", 0), len(answer.calls) - 1)
        name, arguments = (_short(part) for part in answer.calls[index])
        refused = CallRefused(answer.number, name, arguments, _short(error.message), _short(answer.text))
        await self._record(refused)
        conversation += refusal(refused)
        if used.tool_calls >= self._bounds.tool_calls:
            raise _Reached("tool_calls") from None
        return "invalid"

    async def _wait(self, number: int, error: GatewayError) -> bool:
        """Waits until the model may be asked again. False: that won't help."""
        failures = self._failures
        spent = self.used.model_calls >= self._bounds.model_calls
        if spent or failures >= self._retry.max_attempts - 1 or self._retry.reason(error) is None:
            return False
        self._failures += 1
        seconds = max(error.retry_after or 0.0, self._retry.backoff(failures))
        await self._record(ModelFailed(number, error, seconds))
        await self._retry.sleep(seconds)
        return True

    async def _answer_calls(self, conversation: list[Message]) -> None:
        """Runs the calls of the last assistant message that have no result yet, in order."""
        answered = set()
        for message in reversed(conversation):
            if isinstance(message, ToolMessage):
                answered.add(message.tool_call_id)
                continue
            if not isinstance(message, AssistantMessage):
                return
            break
        else:
            return
        for call in message.tool_calls:
            if call.id in answered or self._left(call):
                continue
            if self.used.tool_calls >= self._bounds.tool_calls:
                raise _Reached("tool_calls")
            self.used.tool_calls += 1
            await self._record(ToolCalled(call))
            result = await self._tools.run(call)
            await self._record(ToolAnswered(call, result))
            conversation.append(ToolMessage(dump(result), call.id))
            if self._stop():
                return


class _Answer:
    """A streamed answer of the model."""

    def __init__(self, number: int, record: Callable[[Step], Awaitable[None]]) -> None:
        self.text = ""
        self.deltas = 0
        self.calls: list[tuple[str, str]] = []
        self.number = number
        self._record = record
        self._recorded = 0

    async def read(
        self,
        provider: Model,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        config: RuntimeConfig,
        limit: int,
    ) -> Response[None]:
        stream = await provider.complete(messages, tools or None, replace(config, max_tokens=limit), stream=True)
        try:
            async with stream as events:
                return await self._read(events)
        except (asyncio.CancelledError, GatewayError):
            with suppress(GatewayError):  # the first error counts
                await self._update()
            raise

    async def _read(self, events: AsyncIterator[Delta | Response[None]]) -> Response[None]:
        loop = asyncio.get_running_loop()
        next_update = loop.time() + UPDATE_SECONDS
        async for event in events:
            match event:
                case Response():
                    return event
                case TextDelta(text):
                    self.text += text
                case ToolCallDelta(index, _, name, arguments):
                    while len(self.calls) <= index:
                        self.calls.append(("", ""))
                    known, written = self.calls[index]
                    self.calls[index] = (name or known, written + arguments)
            self.deltas += 1
            if loop.time() >= next_update:
                await self._update()
                next_update = loop.time() + UPDATE_SECONDS
        raise ProviderInvalidResponse("the stream ended without an answer")

    async def _update(self) -> None:
        """Records the text that isn't recorded yet."""
        if len(self.text) > self._recorded:
            new, self._recorded = self.text[self._recorded :], len(self.text)
            await self._record(TextGrew(self.number, new))


def refusal(refused: CallRefused) -> tuple[Message, Message]:
    """The messages that tell the model of a refused call. An invalid call can't have a tool message."""
    said = refused.text or f"I call {refused.name} with {refused.arguments}"
    return (
        AssistantMessage(said),
        UserMessage(
            f"The call of {refused.name or 'a tool'} was refused: {refused.reason}. Correct it, or answer without it."
        ),
    )


def _short(text: str) -> str:
    """Shortens text: a confused model may write without end."""
    return text if len(text) <= REFUSED_CHARS else text[:REFUSED_CHARS] + "…"


def dump(result: Mapping[str, Any]) -> str:
    return json.dumps(result, ensure_ascii=False, separators=(",", ":"))

"""A streamed answer: deltas as they arrive, then the same Response as for a whole answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeAlias, TypeVar

from gateway.errors import ProviderInvalidResponse, ProviderUnavailable
from gateway.provider.failures import Failure
from gateway.provider.mapping import Call
from gateway.provider.response import Response
from gateway.schema.jsontext import parse_json
from gateway.wire.fold import Fold, parts
from gateway.wire.sse import EventTooLarge, SSEReader


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of the message's content."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """The next piece of the model's reasoning, if the server shows it; not part of the content."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The next piece of tool call number `index`: id and name once, then fragments of the arguments' JSON."""

    index: int
    id: str | None
    name: str | None
    arguments: str


Delta: TypeAlias = TextDelta | ReasoningDelta | ToolCallDelta
ParsedT = TypeVar("ParsedT")


class Stream(Generic[ParsedT]):
    """Yields each Delta as it arrives, and last the Response. Use it in `async with`: leaving early ends the call.

    Reading raises the same errors as `complete()`: an answer that breaks off is provider_unavailable.
    """

    def __init__(
        self, events: AsyncGenerator[Delta | Response[Any], None], close: Callable[[], Awaitable[None]]
    ) -> None:
        self._events = events
        self._close = close
        self._response: Response[ParsedT] | None = None

    def __aiter__(self) -> AsyncIterator[Delta | Response[ParsedT]]:
        return self

    async def __anext__(self) -> Delta | Response[ParsedT]:
        event = await anext(self._events)
        if isinstance(event, Response):
            self._response = event
        return event

    async def response(self) -> Response[ParsedT]:
        """Reads the rest of the stream and returns the Response."""
        async for _ in self:
            pass
        if self._response is None:
            raise ProviderUnavailable("the stream was closed before its answer was complete")
        return self._response

    async def aclose(self) -> None:
        await self._events.aclose()
        await self._close()

    async def __aenter__(self) -> Stream[ParsedT]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


async def read_events(pieces: AsyncGenerator[bytes, None], call: Call) -> AsyncGenerator[Delta | Response[Any], None]:
    """Yields the events of an SSE body, which `pieces` may split anywhere. Closes `pieces` at its end."""
    reader, answer = SSEReader(), _StreamedAnswer(call)
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                for delta in answer.feed(reader.feed(piece)):
                    yield delta
                if answer.done:
                    break
            else:
                for delta in answer.feed(reader.finish()):
                    yield delta
    except EventTooLarge as error:
        raise ProviderInvalidResponse(str(error)) from error
    yield await asyncio.to_thread(call.response, answer.body())  # checking a schema may take long


class _StreamedAnswer:
    """The events of one streamed answer, added up. done: its end mark has come."""

    def __init__(self, call: Call) -> None:
        self.done = False
        self._call = call
        self._fold = Fold()
        self._begun = False

    def feed(self, events: list[bytes]) -> Iterator[Delta]:
        """Yields the deltas of these events; ignores what follows the end mark.

        Raises the error of an error frame, and ProviderInvalidResponse for an event that isn't a chunk.
        """
        for data in events:
            if data == b"[DONE]":
                self.done = True
                return
            try:
                chunk = parse_json(data)
            except ValueError as error:
                raise ProviderInvalidResponse(f"an event of the stream is not JSON: {error}") from error
            if isinstance(chunk, dict) and chunk.get("error"):
                raise Failure.frame(chunk["error"]).error(self._call.images)
            self._fold.add_fields(chunk)
            self._begun = True
            for part in parts(chunk):
                if part.get("index", 0) == 0:  # the contract knows one choice
                    yield from _deltas(part.get("delta") or {}, self._fold.add_choice(part))

    def body(self) -> dict[str, Any]:
        """The body of the whole answer.

        Raises ProviderInvalidResponse for a stream without a chunk, ProviderUnavailable for one that broke off.
        """
        if not self._begun:
            raise ProviderInvalidResponse("the stream holds no chunk of an answer")
        choice = self._fold.choices.get(0)
        if not self.done and (choice is None or choice.finish_reason is None):
            raise ProviderUnavailable("the stream broke off before the answer was complete")
        return self._fold.body()


def _deltas(delta: Mapping[str, Any], numbers: list[int]) -> Iterator[Delta]:
    """numbers: of the calls that the delta's tool call fragments belong to."""
    reasoning: str | None = None
    for name, value in delta.items():
        if name == "tool_calls":
            yield from map(_call_delta, value or (), numbers)
        elif name == "content" and isinstance(value, str) and value:
            yield TextDelta(value)
        # Some servers write the reasoning under both of its names.
        elif name in ("reasoning_content", "reasoning") and isinstance(value, str) and value and value != reasoning:
            reasoning = value
            yield ReasoningDelta(value)


def _call_delta(fragment: Mapping[str, Any], number: int) -> ToolCallDelta:
    function = fragment.get("function") or {}
    id_, name = (value if isinstance(value, str) else None for value in (fragment.get("id"), function.get("name")))
    return ToolCallDelta(number, id_, name, function.get("arguments") or "")

"""A streamed answer: token events as they come, and in the end the Response that the whole answer would have been."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, TypeAlias, TypeVar

from gateway.errors import ProviderInvalidResponse, ProviderUnavailable
from gateway.provider.failures import Failure
from gateway.provider.mapping import Call
from gateway.provider.response import Response
from gateway.provider.sse import EventReader
from gateway.schema.jsontext import parse_json


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of the message's content."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """The next piece of the model's reasoning, where the server shows it; it is no part of the content."""

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

    Raises as `complete()` does, also while it is read: an answer that breaks off is provider_unavailable.
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
        """Reads what is left and returns the Response."""
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


async def read_events(chunks: AsyncGenerator[bytes, None], call: Call) -> AsyncGenerator[Delta | Response[Any], None]:
    """The events of an SSE body, which `chunks` may split anywhere. Closes `chunks` at its end."""
    reader, assembly = EventReader(), Assembly()
    async with aclosing(chunks):
        async for chunk in chunks:
            for data in reader.feed(chunk):
                for delta in assembly.feed(data, call.images):
                    yield delta
            if assembly.done:
                break
        else:
            for data in reader.finish():
                for delta in assembly.feed(data, call.images):
                    yield delta
    yield call.response(assembly.body())


class Assembly:
    """Adds the chunks of a streamed answer up to the body of a whole one."""

    def __init__(self) -> None:
        self.done = False
        self._begun = False
        self._body: dict[str, Any] = {}
        self._choice: dict[str, Any] = {"index": 0, "finish_reason": None}
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        self._texts: dict[str, list[str]] = {}
        self._calls: dict[int, _Call] = {}

    def feed(self, data: bytes, images: bool) -> list[Delta]:
        """The deltas of one event. Raises what an error frame says, ProviderInvalidResponse for no chunk."""
        if self.done or data == b"[DONE]":
            self.done = True
            return []
        try:
            chunk = parse_json(data)
        except ValueError as error:
            raise ProviderInvalidResponse(f"the stream holds an event that is not JSON: {error}") from error
        if not isinstance(chunk, dict):
            raise ProviderInvalidResponse("the stream holds an event that is no JSON object")
        if chunk.get("error"):
            raise Failure.frame(chunk["error"]).error(images)
        self._begun = True
        self._body |= {name: value for name, value in chunk.items() if name != "choices" and value is not None}
        choices = chunk.get("choices") or []
        if not isinstance(choices, list):
            raise ProviderInvalidResponse("the stream holds a chunk whose choices are no array")
        return [delta for choice in choices for delta in self._add_choice(choice)]

    def _add_choice(self, choice: Any) -> list[Delta]:
        if not isinstance(choice, dict):
            raise ProviderInvalidResponse("the stream holds a choice that is no object")
        if choice.get("index", 0) != 0:
            return []
        for name, value in choice.items():
            if name == "logprobs" and isinstance(value, dict):
                self._add_logprobs(value)
            elif name != "delta" and value is not None:
                self._choice[name] = value
        delta = choice.get("delta") or {}
        if not isinstance(delta, dict):
            raise ProviderInvalidResponse("the stream holds a delta that is no object")
        found: list[Delta] = []
        for name, value in delta.items():
            if name == "tool_calls":
                found += [self._add_call(entry) for entry in (value if isinstance(value, list) else ())]
            elif name in ("content", "reasoning_content", "reasoning", "refusal") and isinstance(value, str):
                self._texts.setdefault(name, []).append(value)
                if value and name != "refusal":
                    found.append(TextDelta(value) if name == "content" else ReasoningDelta(value))
            elif value is not None:
                self._message[name] = value
        # Some servers write the reasoning under both of its names.
        return list(dict.fromkeys(found)) if "reasoning_content" in delta and "reasoning" in delta else found

    def _add_call(self, entry: Any) -> ToolCallDelta:
        if not isinstance(entry, dict):
            raise ProviderInvalidResponse("the stream holds a tool call that is no object")
        function = entry.get("function") or {}
        if not isinstance(function, dict):
            raise ProviderInvalidResponse("the stream holds a tool call whose function is no object")
        fragment = function.get("arguments") or ""
        if not isinstance(fragment, str):
            raise ProviderInvalidResponse("the stream holds a tool call whose arguments are no string")
        key = entry.get("index")
        if type(key) is not int:  # some servers leave it out: an id begins a call
            key = len(self._calls) if entry.get("id") or not self._calls else next(reversed(self._calls))
        call = self._calls.setdefault(key, _Call(len(self._calls)))
        call.fields.update(
            (name, value) for name, value in entry.items() if name not in ("index", "function") and value
        )
        call.function.update((name, value) for name, value in function.items() if name != "arguments" and value)
        call.arguments.append(fragment)
        id_, name = (value if isinstance(value, str) else None for value in (entry.get("id"), function.get("name")))
        return ToolCallDelta(call.index, id_, name, fragment)

    def _add_logprobs(self, logprobs: dict[str, Any]) -> None:
        kept = self._choice.setdefault("logprobs", {})
        for name, value in logprobs.items():
            kept[name] = [*(kept.get(name) or ()), *value] if isinstance(value, list) else value

    def body(self) -> dict[str, Any]:
        """The whole body. Raises ProviderInvalidResponse for a stream without a chunk, ProviderUnavailable for one
        that broke off."""
        if not self._begun:
            raise ProviderInvalidResponse("the stream holds no chunk of an answer")
        if self._choice["finish_reason"] is None and not self.done:
            raise ProviderUnavailable("the stream broke off before the answer was complete")
        message = {**self._message, **{name: "".join(pieces) for name, pieces in self._texts.items()}}
        if self._calls:
            message["tool_calls"] = [call.entry() for call in self._calls.values()]
        return {**self._body, "object": "chat.completion", "choices": [{**self._choice, "message": message}]}


@dataclass(frozen=True, slots=True)
class _Call:
    """A tool call as far as it has come."""

    index: int
    fields: dict[str, Any] = field(default_factory=lambda: {"type": "function"})
    function: dict[str, Any] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)

    def entry(self) -> dict[str, Any]:
        return {**self.fields, "function": {**self.function, "arguments": "".join(self.arguments)}}

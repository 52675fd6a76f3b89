"""The event stream of models and agents (`/ctx`): event types, their JSON lines, and events from chat chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from gateway.wire.pieces import CallArguments, CallStart, End, ReasoningPiece, pieces
from gateway.wire.pieces import TextPiece as TextPiece
from gateway.wire.pieces import UsagePiece as UsagePiece

Status = Literal["ok", "error", "cancelled"]


class Text(Struct, tag="text", tag_field="type"):
    text: str


class _Event(Struct, tag_field="type", kw_only=True):
    """id: the event's place in its session, from which a client resumes; unset if the session isn't stored.

    run: unset in an error outside any run.
    """

    id: str | UnsetType = UNSET
    run: str | UnsetType = UNSET


class Start(_Event, tag="start", kw_only=True):
    """model, agent, tool: the object that answers. client_id: the id of the message that it answers."""

    model: str | UnsetType = UNSET
    agent: str | UnsetType = UNSET
    tool: str | UnsetType = UNSET
    client_id: str | UnsetType = UNSET


class Delta(_Event, tag="delta", kw_only=True):
    text: str


class Message(_Event, tag="message", kw_only=True):
    """All the text of an answer: its deltas joined."""

    role: Literal["assistant"] = "assistant"
    content: list[Text]


class Media(_Event, tag="media", kw_only=True):
    """A piece of sound, or a picture. data: in base64 as JSON."""

    content_type: str
    data: bytes


class ReasoningDelta(_Event, tag="reasoning_delta", kw_only=True):
    text: str


class ReasoningMessage(_Event, tag="reasoning_message", kw_only=True):
    content: list[Text]


class ToolCall(_Event, tag="tool_call", kw_only=True):
    """A call that the model asks for. arguments: JSON.

    A model's call isn't executed by the gateway, and `id` is the call's id too. An agent's is, and has a `call_id`.
    """

    name: str
    arguments: Raw
    call_id: str | UnsetType = UNSET


class ToolResult(_Event, tag="tool_result", kw_only=True):
    """What a tool returned. call_id: of the agent's call that it answers. result: JSON."""

    name: str
    result: Raw
    ok: bool
    call_id: str | UnsetType = UNSET


class UsageEvent(_Event, tag="usage", kw_only=True):
    input_tokens: int
    output_tokens: int
    cached_tokens: int | UnsetType = UNSET


class Error(_Event, tag="error", kw_only=True):
    """code: an errno name. message: for people. client_id: the id of the rejected message."""

    code: str
    message: str
    client_id: str | UnsetType = UNSET


class Done(_Event, tag="done", kw_only=True):
    """reason: `length` if the answer was cut at the limit of its length; for an agent, the limit of its turn."""

    status: Status
    reason: str | UnsetType = UNSET


class Pong(Struct, tag="pong", tag_field="type"):
    """The answer to a ping on a socket, outside any run."""


Event = (
    Start
    | Delta
    | Message
    | Media
    | ReasoningDelta
    | ReasoningMessage
    | ToolCall
    | ToolResult
    | UsageEvent
    | Error
    | Done
)

_encode = msgspec.json.Encoder().encode
decode: Callable[[bytes], Event] = msgspec.json.Decoder(Event).decode


def line(event: Event | Pong) -> bytes:
    """One frame: a JSON object and its newline."""
    return _encode(event) + b"\n"


class AnswerTooLong(ValueError):
    """A message with the whole answer would exceed a frame."""


class EventWriter:
    """Writes an answer as events: `take` returns the events since the last call, `finish` the messages and the usage.

    Adjacent deltas of one kind are joined. Calls come whole at the end, because engines may write several at once.
    limit: the answer's largest size as JSON, in bytes; above it the methods raise AnswerTooLong.
    """

    def __init__(self, run: str, limit: int) -> None:
        self._run = run
        self._limit = limit
        self._events: list[Event] = []
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, tuple[str, list[str]]] = {}
        self._usage: UsageEvent | None = None
        self.cut = False
        """Whether the limit of its length ended the answer."""

    def text(self, text: str) -> None:
        self._count(text)
        self._text.append(text)
        if self._events and isinstance(last := self._events[-1], Delta):
            last.text += text
        else:
            self._events.append(Delta(run=self._run, text=text))

    def reasoning(self, text: str) -> None:
        self._count(text)
        self._reasoning.append(text)
        if self._events and isinstance(last := self._events[-1], ReasoningDelta):
            last.text += text
        else:
            self._events.append(ReasoningDelta(run=self._run, text=text))

    def call(self, index: int, name: str) -> None:
        self._count(name)
        self._calls[index] = (name, [])

    def arguments(self, index: int, json: str) -> None:
        self._count(json)
        self._calls[index][1].append(json)

    def usage(self, prompt: int, completion: int, cached: int) -> None:
        self._usage = UsageEvent(
            run=self._run,
            input_tokens=max(0, prompt),
            output_tokens=max(0, completion),
            cached_tokens=cached if cached > 0 else UNSET,
        )

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def finish(self) -> list[Event]:
        if self._reasoning:
            self._events.append(ReasoningMessage(run=self._run, content=[Text("".join(self._reasoning))]))
        if self._text or not self._calls:
            self._events.append(Message(run=self._run, content=[Text("".join(self._text))]))
        for number, (name, parts) in enumerate(self._calls.values(), 1):
            arguments = _arguments("".join(parts))
            self._events.append(ToolCall(id=f"call-{number}", run=self._run, name=name, arguments=arguments))
        if self._usage is not None:
            self._events.append(self._usage)
        return self.take()

    def _count(self, text: str) -> None:
        self._limit -= len(_encode(text))
        if self._limit < 0:
            raise AnswerTooLong("the answer exceeds the size limit of a message")


def _arguments(json: str) -> Raw:
    """The arguments as JSON on one line, whatever the engine's layout; truncated arguments as a JSON string."""
    try:
        msgspec.json.decode(json or "{}")
        return Raw(msgspec.json.format(json.encode() or b"{}", indent=-1))
    except (msgspec.DecodeError, RecursionError):
        return Raw(_encode(json))


class EventReader(EventWriter):
    """Turns the clean chunks of one streamed chat answer into events, without the engine's ids."""

    def feed(self, payloads: Iterable[bytes]) -> list[Event]:
        for payload in payloads:
            for piece in pieces(payload):
                match piece:
                    case TextPiece(text=text) if text:
                        self.text(text)
                    case ReasoningPiece(text=text):
                        self.reasoning(text)
                    case CallStart(index=index, name=name):
                        self.call(index, name)
                    case CallArguments(index=index, json=json):
                        self.arguments(index, json)
                    case UsagePiece(prompt=prompt, completion=completion, cached=cached):
                        self.usage(prompt, completion, cached)
                    case End(reason="length"):
                        self.cut = True
        return self.take()

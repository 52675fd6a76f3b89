"""The canonical event stream of models and agents (`/ctx`): the union, its JSON lines, and how chunks become events."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

Status = Literal["ok", "error", "cancelled"]


class Text(Struct, tag="text", tag_field="type"):
    text: str


class _Event(Struct, tag_field="type", kw_only=True):
    """id: the event's place in its session, by which a client resumes; not set where nothing is kept.

    run: not set in an error that belongs to no run.
    """

    id: str | UnsetType = UNSET
    run: str | UnsetType = UNSET


class Start(_Event, tag="start", kw_only=True):
    """model: the object that answers, `provider/model`."""

    model: str


class Delta(_Event, tag="delta", kw_only=True):
    text: str


class Message(_Event, tag="message", kw_only=True):
    """All the text of an answer: its deltas joined."""

    role: Literal["assistant"] = "assistant"
    content: list[Text]


class ReasoningDelta(_Event, tag="reasoning_delta", kw_only=True):
    text: str


class ReasoningMessage(_Event, tag="reasoning_message", kw_only=True):
    content: list[Text]


class ToolCall(_Event, tag="tool_call", kw_only=True):
    """What the model wants done; nobody has done it. Its id is the call's id, too. arguments: JSON."""

    name: str
    arguments: Raw


class Usage(_Event, tag="usage", kw_only=True):
    input_tokens: int
    output_tokens: int
    cached_tokens: int | UnsetType = UNSET


class Error(_Event, tag="error", kw_only=True):
    """code: the name of an errno. message: for people."""

    code: str
    message: str


class Done(_Event, tag="done", kw_only=True):
    status: Status


class Pong(Struct, tag="pong", tag_field="type"):
    """A socket's answer to a ping; part of no run."""


Event = Start | Delta | Message | ReasoningDelta | ReasoningMessage | ToolCall | Usage | Error | Done

_encode = msgspec.json.Encoder().encode
decode: Callable[[bytes], Event] = msgspec.json.Decoder(Event).decode


def line(event: Event | Pong) -> bytes:
    """One frame: a JSON object and its newline."""
    return _encode(event) + b"\n"


class _Function(Struct):
    name: str | None = None
    arguments: str | None = None


class _CallDelta(Struct):
    index: int = 0
    function: _Function | None = None


class _Delta(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_CallDelta] | None = None


class _Choice(Struct):
    delta: _Delta | None = None
    index: int = 0


class _Details(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Chunk(Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class AnswerTooLong(ValueError):
    """A message with the whole answer would exceed a frame."""


class EventReader:
    """The clean chunks of one streamed answer, as events: `feed` as they come, then `finish`.

    Deltas are the text as it comes; calls come whole. What one `feed` brings is joined. limit: bytes that the texts of
    an answer may have as JSON; beyond it `feed` raises AnswerTooLong. Nothing of an engine's own ids comes through.
    """

    def __init__(self, run: str, limit: int) -> None:
        self._run = run
        self._limit = limit
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._call: tuple[int, str, list[str]] | None = None
        self._calls = 0
        self._usage: _Usage | None = None

    def feed(self, payloads: Iterable[bytes]) -> list[Event]:
        events: list[Event] = []
        for payload in payloads:
            chunk = _decode_chunk(payload)
            if chunk.usage is not None:
                self._usage = chunk.usage
            for choice in chunk.choices or ():
                if choice.index == 0 and (delta := choice.delta) is not None:
                    if delta.reasoning_content:
                        self._take(events, ReasoningDelta, self._reasoning, delta.reasoning_content)
                    if delta.content:
                        self._take(events, Delta, self._text, delta.content)
                    for piece in delta.tool_calls or ():
                        self._piece(events, piece)
        return events

    def finish(self) -> list[Event]:
        """The last call, the messages and the usage."""
        events: list[Event] = []
        self._end_call(events)
        if self._reasoning:
            events.append(ReasoningMessage(run=self._run, content=[Text("".join(self._reasoning))]))
        if self._text or not self._calls:
            events.append(Message(run=self._run, content=[Text("".join(self._text))]))
        if (usage := self._usage) is not None:
            details = usage.prompt_tokens_details
            cached = details.cached_tokens if details is not None else None
            events.append(
                Usage(
                    run=self._run,
                    input_tokens=max(0, usage.prompt_tokens),
                    output_tokens=max(0, usage.completion_tokens),
                    cached_tokens=UNSET if cached is None else max(0, cached),
                )
            )
        return events

    def _take(self, events: list[Event], kind: type[Delta] | type[ReasoningDelta], texts: list[str], text: str) -> None:
        self._count(text)
        texts.append(text)
        last = events[-1] if events else None
        if type(last) is kind:
            last.text += text
        else:
            events.append(kind(run=self._run, text=text))

    def _piece(self, events: list[Event], piece: _CallDelta) -> None:
        function = piece.function or _Function()
        if self._call is None or self._call[0] != piece.index:
            self._end_call(events)
            self._call = (piece.index, function.name or "", [])
            self._count(self._call[1])
        if function.arguments:
            self._count(function.arguments)
            self._call[2].append(function.arguments)

    def _end_call(self, events: list[Event]) -> None:
        if self._call is None:
            return
        _, name, parts = self._call
        self._call = None
        arguments = Raw("".join(parts).encode() or b"{}")
        try:
            msgspec.json.decode(arguments)
        except (msgspec.DecodeError, RecursionError):
            # An engine that reads its model's calls itself may cut them; as text they are still all there.
            arguments = Raw(_encode("".join(parts)))
        self._calls += 1
        events.append(ToolCall(id=f"call-{self._calls}", run=self._run, name=name, arguments=arguments))

    def _count(self, text: str) -> None:
        self._limit -= len(_encode(text))
        if self._limit < 0:
            raise AnswerTooLong("the answer is longer than a message may be")

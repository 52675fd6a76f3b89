"""The six kinds of event that a normaliser emits, and the fold that makes one message of them.

Events are plain slotted dataclasses: cheap to create on the hot path, equal by type and value.
Treat them as immutable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(slots=True)
class TextDelta:
    """A piece of the answer's content."""

    text: str


@dataclass(slots=True)
class ReasoningDelta:
    """A piece of the model's reasoning (``reasoning_content``)."""

    text: str


@dataclass(slots=True)
class ToolStart:
    """A call begins. `index` counts the answer's calls from 0."""

    index: int
    id: str
    name: str


@dataclass(slots=True)
class ToolArgs:
    """A fragment of the call's arguments; joined, the fragments are JSON text."""

    index: int
    json: str


@dataclass(slots=True)
class ToolEnd:
    """The call is complete. Its fragments, joined, are one valid JSON object, unless the answer's length cut it."""

    index: int
    cut: bool = False


@dataclass(slots=True)
class Warn:
    """The normaliser dropped or refused something. `text` is the model output in question."""

    code: str
    text: str


Event: TypeAlias = TextDelta | ReasoningDelta | ToolStart | ToolArgs | ToolEnd | Warn


@dataclass(slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str
    """JSON text of an object."""


@dataclass(slots=True)
class Message:
    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    warnings: list[Warn] = field(default_factory=list)


def fold(events: Iterable[Event]) -> Message:
    """Join a whole answer's events. Leaves out calls that never ended, which only guarded ones can do."""
    content: list[str] = []
    reasoning: list[str] = []
    started: dict[int, tuple[ToolStart, list[str]]] = {}
    message = Message()
    for event in events:
        match event:
            case TextDelta(text):
                content.append(text)
            case ReasoningDelta(text):
                reasoning.append(text)
            case ToolStart(index):
                started[index] = (event, [])
            case ToolArgs(index, json):
                started[index][1].append(json)
            case ToolEnd(index):
                start, parts = started[index]
                message.tool_calls.append(ToolCall(start.id, start.name, "".join(parts)))
            case Warn():
                message.warnings.append(event)
    message.content = "".join(content)
    message.reasoning = "".join(reasoning)
    return message


def coalesce(events: Iterable[Event]) -> list[Event]:
    """Join neighbouring deltas of one kind. In this form all splits of a text give equal events."""
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        match last, event:
            case (TextDelta(a), TextDelta(b)):
                joined[-1] = TextDelta(a + b)
            case (ReasoningDelta(a), ReasoningDelta(b)):
                joined[-1] = ReasoningDelta(a + b)
            case (ToolArgs(i, a), ToolArgs(j, b)) if i == j:
                joined[-1] = ToolArgs(i, a + b)
            case _:
                joined.append(event)
    return joined

"""The pieces of a streamed answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of the message's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """The next piece of the model's reasoning, if the server shows it."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The next piece of tool call number `index`: id and name once, then fragments of the arguments' JSON."""

    index: int
    id: str | None
    name: str | None
    arguments: str


Delta: TypeAlias = TextDelta | ReasoningDelta | ToolCallDelta

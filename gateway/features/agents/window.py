"""What a model sees of a conversation that is longer than its context window. Decides only: asks and counts nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.provider import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage

SHORT_RESULT = 240
"""Characters of the short form of a tool's result."""
LONG_CALL = 400
"""Characters of arguments from which on an earlier turn's call is only described."""
STEP = 60
"""Characters of a step of the running turn, once its steps are only described."""

CHARS_PER_TOKEN = 3.6
PER_MESSAGE = 4

ASKED = "What has happened in this conversation so far?"
"""The question that a summary answers. So a summary has the weight of the model's own words, never of instructions."""


@dataclass(frozen=True, slots=True)
class PastTurn:
    """An earlier turn. seq: the number of its message. messages: begin with the user's."""

    seq: int
    messages: tuple[Message, ...]


def weight(messages: Iterable[Message]) -> int:
    """About how many tokens the messages have. Right in proportion, for a choice among them."""
    return sum(PER_MESSAGE + round(_size(message) / CHARS_PER_TOKEN) for message in messages)


def _size(message: Message) -> int:
    if isinstance(message, AssistantMessage):
        return len(message.text) + sum(len(call.name) + len(str(call.arguments)) for call in message.tool_calls)
    return len(message.content) if isinstance(message.content, str) else 0


def shortened(text: str, maximum: int) -> str:
    """The text, or its beginning and how many characters are left out."""
    return text if len(text) <= maximum else f"{text[:maximum]}… [{len(text) - maximum:,} more characters]"


def with_short_results(messages: Sequence[Message], maximum: int) -> list[Message]:
    """The messages with tool results of at most about `maximum` characters."""
    return [
        replace(message, content=shortened(message.content, maximum)) if isinstance(message, ToolMessage) else message
        for message in messages
    ]


def with_steps_told(messages: Sequence[Message], maximum: int, *, all_steps: bool) -> list[Message]:
    """A running turn without its steps: the user's message names them instead, in at most about `maximum` characters.

    all_steps: the last one too, which otherwise stays as it is.
    """
    calls = [at for at, message in enumerate(messages) if isinstance(message, AssistantMessage) and message.tool_calls]
    first = len(messages) if all_steps or not calls else calls[-1]
    steps = list(told_steps(messages[1:first], STEP))
    user = messages[0]
    if not steps or not isinstance(user, UserMessage):
        return [*messages]
    lines = _newest(steps, maximum)
    note = "\n".join([f"[{len(steps) - len(lines)} earlier ones]"] * (len(lines) < len(steps)) + lines)
    return [
        UserMessage(f"{user.content}\n\n[Your steps so far, which you need not repeat:\n{note}]"),
        *messages[first:],
    ]


def _newest(lines: Sequence[str], maximum: int) -> list[str]:
    """The last lines, of at most so many characters together."""
    kept: list[str] = []
    for line in reversed(lines):
        maximum -= len(line)
        if maximum < 0:
            break
        kept.append(line)
    return kept[::-1]


def told_steps(messages: Sequence[Message], maximum: int) -> Iterator[str]:
    """A line for each thing that was said or done, in at most about `maximum` characters each."""
    names: dict[str, ToolCall] = {}
    for message in messages:
        match message:
            case UserMessage(content) if isinstance(content, str):
                yield f"user: {shortened(content, maximum)}"
            case AssistantMessage():
                if message.text:
                    yield f"assistant: {shortened(message.text, maximum)}"
                names |= {call.id: call for call in message.tool_calls}
            case ToolMessage(content, call_id):
                call = names.get(call_id)
                made = f"{call.name} {_arguments(call.arguments)}" if call is not None else "a tool"
                yield f"tool {shortened(made, maximum)}: {shortened(content, maximum)}"
            case _:
                pass


def _arguments(arguments: Mapping[str, object] | None) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in (arguments or {}).items())


def opened(system: str, summary: str, past: Sequence[PastTurn], turn: Sequence[Message]) -> list[Message]:
    """The whole conversation: system message, summary of what isn't shown, earlier turns, the running turn."""
    messages: list[Message] = [SystemMessage(system)] if system else []
    if summary:
        messages += (UserMessage(ASKED), AssistantMessage(summary))
    for earlier in past:
        messages += earlier.messages
    return [*messages, *turn]


def to_fold(past: Sequence[PastTurn], tokens: int, target: int, rest: int, maximum: int) -> int:
    """How many of the oldest turns must become a summary: at least one.

    tokens: of the whole conversation; target: what it should have then. rest: the weight of all but these turns.
    maximum: turns that may stay, however short.
    """
    weights = [weight(turn.messages) for turn in past]
    scale = tokens / max(1, sum(weights) + rest)
    number = max(1, len(past) - maximum)
    left = tokens - sum(weights[:number]) * scale
    while number < len(past) and left > target:
        left -= weights[number] * scale
        number += 1
    return number

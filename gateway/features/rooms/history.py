"""A turn's view of a room's past: earlier turns as messages of a conversation, read from the room's record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.features.agents.turn import CallRefused, Used, dump, refusal
from gateway.features.agents.window import LONG_CALL, SHORT_RESULT, PastTurn, told_steps, with_short_results
from gateway.features.rooms.schemas import Event, Message
from gateway.provider import AssistantMessage, ToolCall, ToolMessage, UserMessage
from gateway.provider import Message as Said

ENDS = {"interrupted": "[interrupted]", "failed": "[the turn failed]", "limited": "[the turn reached its limit]"}
"""Suffixes for the text of a turn that didn't end normally."""

NO_ANSWER = "[no answer]"

CUT_OFF = {"error": {"code": "tool_interrupted", "message": "the turn ended during this call"}}

KINDS = ("agent:message", "tool:refused", "tool:call", "tool:result")
"""The events that show what was said in a turn."""


@dataclass(slots=True)
class Recorded:
    """An earlier message, its outputs, and the events of its turn."""

    message: Message
    outputs: list[Message] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


class Before:
    """The state of a turn before it was cut off, read from its events."""

    def __init__(self, recorded: Sequence[Event]) -> None:
        self.used = Used()
        self.said: list[Said] = []
        self.started: dict[str, int] = {}
        """Id of each tool call without a result → how often it began."""
        self.redacted: set[str] = set()
        """Ids of tool calls whose arguments were redacted in the record."""
        self.unfinished = ""
        """Text that the model had written of an answer without an end."""
        for event in recorded:
            self._add(event.event_type, event.payload)

    def _add(self, kind: str, payload: Mapping[str, Any]) -> None:
        used = self.used
        match kind:
            case "agent:model_call":
                used.model_calls = payload["call"]
                self.unfinished = ""
            case "agent:update":
                self.unfinished += payload["text"]
            case "agent:message":
                self.unfinished = ""
                calls = [ToolCall(call["id"], call["name"], call["arguments"]) for call in payload["tool_calls"]]
                self.redacted.update(call["id"] for call in payload["tool_calls"] if call.get("redacted"))
                for name, count in payload["usage"].items():
                    used.usage[name] += count or 0
                used.output_tokens += payload["usage"]["output"] or 0
                if payload["content"] or calls:
                    self.said.append(AssistantMessage(payload["content"], calls))
            case "tool:refused":
                used.tool_calls += 1
                self.said += refusal(CallRefused(**payload))
            case "tool:call":
                used.tool_calls += 1
                self.started[payload["call_id"]] = self.started.get(payload["call_id"], 0) + 1
            case "tool:result":
                self.started.pop(payload["call_id"], None)
                self.said.append(ToolMessage(dump(payload["result"]), payload["call_id"]))
            case "agent:turn_end":
                self.used = Used()  # the room failed and was woken: the turn gets fresh limits


def past_turn(recorded: Recorded, takes: Callable[[ToolCall], bool]) -> PastTurn:
    """An earlier turn, with tool results in short form.

    takes: whether the model may see a call as one. A call that it may not, or that is long, becomes text.
    """
    message = recorded.message
    before = Before(recorded.events)
    said = with_short_results(_answered(before.said), SHORT_RESULT)
    if not all(_brief(call) and takes(call) for each in said for call in _calls(each)):
        said = [AssistantMessage("\n".join(told_steps(said, SHORT_RESULT)))]
    last = said[-1].text if said and isinstance(said[-1], AssistantMessage) else ""
    texts = [text for output in recorded.outputs if (text := output.text()) and text != last]
    if message.status in ENDS:
        texts = [*(texts or [before.unfinished]), ENDS[message.status]]
    text = " ".join(filter(None, texts))
    return PastTurn(message.seq, (UserMessage(message.text()), *_closed(said, text)))


def _answered(said: Sequence[Said]) -> list[Said]:
    """Adds a result for each call, which every provider requires."""
    found: list[Said] = []
    waiting: list[str] = []
    for message in said:
        if isinstance(message, ToolMessage):
            waiting = [id for id in waiting if id != message.tool_call_id]
        else:
            found += [ToolMessage(dump(CUT_OFF), id) for id in waiting]
            waiting = [call.id for call in _calls(message)]
        found.append(message)
    return [*found, *(ToolMessage(dump(CUT_OFF), id) for id in waiting)]


def _calls(message: Said) -> Sequence[ToolCall]:
    return message.tool_calls if isinstance(message, AssistantMessage) else ()


def _brief(call: ToolCall) -> bool:
    return len(dump(call.arguments or {})) <= LONG_CALL


def _closed(said: Sequence[Said], text: str) -> list[Said]:
    """Ends with an assistant's message, which has the text: templates want the roles in turns."""
    if said and isinstance(last := said[-1], AssistantMessage) and not last.tool_calls:
        return [*said[:-1], replace(last, content=f"{last.text} {text}".strip() or NO_ANSWER)]
    return [*said, AssistantMessage(text or NO_ANSWER)]


def told(turn: PastTurn, maximum: int) -> str:
    """The turn as text, for a summary; each thing said in at most `maximum` characters."""
    return "\n".join(told_steps(turn.messages, maximum))

"""A session's conversation as chat messages, in the order that OpenAI demands. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from gateway.errors import ProviderInvalidRequest
from gateway.features.ctx.frames import Send, ToolResult

Message = dict[str, Any]

UNANSWERED = "(the call was not run)"
"""Stands for a result that a client never sent: a call without one would make every later request invalid."""


def question(text: str | None, results: Iterable[ToolResult]) -> list[Message]:
    """What a client says: results first, then its text."""
    said: list[Message] = [
        {"role": "tool", "tool_call_id": result.id, "content": _text(result.content)} for result in results
    ]
    return said + ([{"role": "user", "content": text}] if text else [])


def asked(messages: Sequence[Message], send: Send) -> dict[str, Any]:
    """The fields of a chat request: the conversation so far, and what the client says now.

    Raises ProviderInvalidRequest for a result of a call that the last answer doesn't have.
    """
    results = [] if send.tool_results is UNSET else send.tool_results
    calls = [call["id"] for call in (messages[-1].get("tool_calls") or ())] if messages else []
    for result in results:
        if result.id not in calls:
            known = ", ".join(calls) or "none"
            raise ProviderInvalidRequest(
                f"tool_results: the last answer has no call {result.id[:80]!r}; it has: {known}"
            )
    if len({result.id for result in results}) < len(results):
        raise ProviderInvalidRequest("tool_results: two results of one call")
    fields: dict[str, Any] = {"messages": ordered([*messages, *question(send.input, results)])}
    if send.tools is not UNSET:
        fields["tools"] = send.tools
    return fields


def ordered(messages: Iterable[Message]) -> list[Message]:
    """The messages with a result for each call, directly after its answer and in the order of the calls."""
    found = list(messages)
    made: list[Message] = []
    while found:
        message = found.pop(0)
        made.append(message)
        if calls := message.get("tool_calls"):
            results: dict[str, Message] = {}
            while found and found[0]["role"] == "tool":
                result = found.pop(0)
                results[result["tool_call_id"]] = result
            for call in calls:
                missing = {"role": "tool", "tool_call_id": call["id"], "content": UNANSWERED}
                made.append(results.get(call["id"], missing))
    return made


def answered(text: str, calls: Sequence[dict[str, Any]]) -> Message:
    """An assistant's message. calls: each with `id`, `name` and `arguments` as JSON."""
    message: Message = {"role": "assistant", "content": text}
    if calls:
        message["content"] = text or None
        message["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": msgspec.json.encode(call["arguments"]).decode()},
            }
            for call in calls
        ]
    return message


def _text(content: Any) -> str:
    return content if isinstance(content, str) else msgspec.json.encode(content).decode()

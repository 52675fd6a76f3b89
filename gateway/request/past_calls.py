"""Past calls in the messages in which the chat template shows all of them: see `normalizers.derive.history`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from normalizers.derive.history import History

Message = dict[str, Any]


def as_wanted(messages: list[Message], history: History) -> tuple[list[Message], Mapping[str, int]]:
    """The messages as the template wants them, and the number of changes by kind, as in
    `gateway.answer.report.ADAPTED`."""
    counts: Counter[str] = Counter()
    if history.apart:
        messages = [one for message in messages for one in _apart(message, counts)]
    if history.single_calls:
        messages = [*_single_calls(messages, counts)]
    return messages, counts


def _apart(message: Message, counts: Counter[str]) -> list[Message]:
    """The text before the calls that the template drops beside them. The reasoning came before both."""
    if not message.get("tool_calls") or not message.get("content"):
        return [message]
    counts["texts_apart"] += 1
    said = {name: value for name, value in message.items() if name != "tool_calls"}
    called = {name: value for name, value in message.items() if name not in _REASONING}
    return [said, {**called, "content": ""}]


_REASONING = ("reasoning_content", "reasoning")


def _single_calls(messages: list[Message], counts: Counter[str]) -> Iterator[Message]:
    """Each of several calls in a message of its own, followed by its results."""
    at = 0
    while at < len(messages):
        message, end = messages[at], at + 1
        calls = message.get("tool_calls")
        if not isinstance(calls, list) or len(calls) < 2 or not all(isinstance(call, dict) for call in calls):
            yield message
            at = end
            continue
        while end < len(messages) and messages[end].get("role") == "tool":
            end += 1
        results, at = messages[at + 1 : end], end
        counts["split_messages"] += 1
        rest = {name: value for name, value in message.items() if name not in _REASONING}
        for place, call in enumerate(calls):
            yield {**(message if place == 0 else {**rest, "content": ""}), "tool_calls": [call]}
            yield from (result for result in results if result.get("tool_call_id") == call.get("id"))
        ids = {call.get("id") for call in calls}
        yield from (result for result in results if result.get("tool_call_id") not in ids)

"""Calls that a conversation has answered already: a model that makes one of them once more is in a loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gateway.wire.chat import ChatRequest, decode

Call = tuple[str, str]
"""A name, and the arguments as JSON with sorted keys."""

_canonical = msgspec.json.Encoder(order="sorted").encode


def answered(request: ChatRequest) -> frozenset[Call]:
    """The calls since the user's last message that have a result, if such a result is the last message; else none."""
    if request.tools is None or not request.past_calls or request.tool_choice not in (None, "auto"):
        return frozenset()
    messages = decode(request.fields["messages"])
    if not isinstance(messages[-1], Mapping) or messages[-1].get("role") != "tool":
        return frozenset()
    calls: dict[object, Call] = {}
    results: set[object] = set()
    for message in reversed(messages):
        if message.get("role") == "tool":
            results.add(message.get("tool_call_id"))
        elif message.get("role") == "assistant":
            calls |= dict(_calls(message.get("tool_calls")))
        else:
            break
    return frozenset(call for id, call in calls.items() if id in results)


def calls_in(message: Mapping[str, Any]) -> list[Call]:
    """The calls of an answer's message, or of a delta that holds them complete."""
    return [call for _, call in _calls(message.get("tool_calls"))]


def _calls(given: Any) -> Iterable[tuple[object, Call]]:
    for call in given if isinstance(given, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            yield call.get("id"), (function["name"], _arguments(function.get("arguments")))


def _arguments(given: Any) -> str:
    """Two texts of the same arguments become the same."""
    if isinstance(given, str):
        try:
            given = decode(given or "{}")
        except (msgspec.DecodeError, RecursionError):
            return str(given)
    return _canonical(given).decode()

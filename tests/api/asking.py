"""Helpers of the API tests: chunks of a scripted engine, and the frames of an answer."""

from __future__ import annotations

import json
from typing import Any

from tests.gateway.client import Answer
from tests.gateway.double import Json, Script, chunk, streams

USAGE: Json = {
    "prompt_tokens": 11,
    "completion_tokens": 7,
    "total_tokens": 18,
    "prompt_tokens_details": {"cached_tokens": 4},
}
USAGE_CHUNK: Json = {**chunk(), "choices": [], "usage": USAGE}

WEATHER: Json = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}


def call(index: int, id: str, name: str, *parts: str) -> list[Json]:
    """The chunks of one call, its arguments piece by piece."""
    function = {"name": name, "arguments": ""}
    first = chunk(tool_calls=[{"index": index, "id": id, "type": "function", "function": function}])
    return [first, *(chunk(tool_calls=[{"index": index, "function": {"arguments": part}}]) for part in parts)]


def said(*chunks: Json, reason: str = "stop") -> Script:
    """An engine's stream to its good end."""
    return streams(*chunks, chunk(reason=reason), USAGE_CHUNK)


def frames(answer: Answer) -> list[tuple[str, Any]]:
    """Event name and data of each server-sent event; comments left out."""
    assert answer.body.endswith(b"\n\n"), answer.body
    found = []
    for frame in answer.body.decode().removesuffix("\n\n").split("\n\n"):
        if frame.startswith(":"):
            continue
        first, second = frame.split("\n")
        assert first.startswith("event: ")
        assert second.startswith("data: ")
        found.append((first.removeprefix("event: "), json.loads(second.removeprefix("data: "))))
    return found

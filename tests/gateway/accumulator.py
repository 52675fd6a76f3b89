"""What a client makes of an answer's chunks, and of a whole answer, in one form; it refuses what breaks the laws."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Call:
    name: str
    arguments: str


@dataclass
class Choice:
    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    reason: str | None = None
    warnings: list[dict[str, str]] = field(default_factory=list)

    def check(self) -> Choice:
        """The laws that hold once the answer has ended."""
        assert self.reason is not None, "a finish_reason"
        if self.reason in ("stop", "tool_calls"):
            assert (self.reason == "tool_calls") == bool(self.completed)
            assert self.completed == self.calls
        return self

    @property
    def completed(self) -> list[Call]:
        return [call for call in self.calls if _is_object(call.arguments)]


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def from_stream(payloads: Iterable[bytes]) -> dict[int, Choice]:
    choices: dict[int, Choice] = {}
    ids: set[str] = set()
    for payload in payloads:
        chunk: dict[str, Any] = json.loads(payload)
        assert "error" not in chunk, chunk
        assert chunk["object"] == "chat.completion.chunk"
        for frame in chunk["choices"]:
            choice = choices.setdefault(frame["index"], Choice())
            assert choice.reason is None, "nothing follows a finish_reason"
            delta = frame["delta"]
            choice.content += delta.get("content") or ""
            choice.reasoning += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls") or ():
                _fragment(choice, ids, call)
            choice.reason = frame.get("finish_reason")
            choice.warnings += chunk.get("ctxgate", {}).get("warnings", ()) if choice.reason else ()
    return {index: choice.check() for index, choice in choices.items()}


def _fragment(choice: Choice, ids: set[str], call: dict[str, Any]) -> None:
    index, function = call["index"], call["function"]
    assert isinstance(function["arguments"], str)
    if index == len(choice.calls):
        assert isinstance(call["id"], str)
        assert call["id"]
        assert call["id"] not in ids, "ids are unique"
        assert call["type"] == "function"
        ids.add(call["id"])
        choice.calls.append(Call(function["name"], function["arguments"]))
    else:
        assert 0 <= index < len(choice.calls), "indices count up"
        # OpenAI's client joins every string of a fragment, so a repeated one would double.
        assert not {"id", "type"} & call.keys()
        assert "name" not in function
        choice.calls[index].arguments += function["arguments"]


def from_whole(body: bytes) -> dict[int, Choice]:
    answer = json.loads(body)
    assert answer["object"] == "chat.completion"
    told = answer.get("ctxgate", {}).get("warnings", [])
    choices: dict[int, Choice] = {}
    ids: set[str] = set()
    for frame in answer["choices"]:
        message = frame["message"]
        choice = Choice(
            message["content"] or "", message.get("reasoning_content") or "", [], frame["finish_reason"], told
        )
        for call in message.get("tool_calls", ()):
            assert call.keys() >= {"id", "type", "function"}
            assert "index" not in call
            assert call["id"] not in ids
            ids.add(call["id"])
            choice.calls.append(Call(call["function"]["name"], call["function"]["arguments"]))
        assert message.get("tool_calls") != []
        assert message["content"] is not None or choice.calls or frame["finish_reason"] != "stop"
        choices[frame["index"]] = choice.check()
    return choices

"""Replaces tool names that OpenAI's rule forbids, for servers that enforce it, and restores them in answers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, Self

from msgspec import Raw

from gateway.wire.chat import decode, encode
from gateway.wire.engine import Fixup

LONGEST = 64
NUMBER = 8
"""The most characters of the number that tells equal names apart, with its `_`: more than a body's tools need."""
_RULE = re.compile(rf"[a-zA-Z0-9_-]{{1,{LONGEST}}}")
_FORBIDDEN = re.compile(r"[^a-zA-Z0-9_-]")
_suspect = re.compile(rb'"name"\s*:\s*"(?![a-zA-Z0-9_-]{1,64}")').search
"""Also matches other `name` fields, such as a parameter's; a false positive only costs time."""


class ToolNames(Fixup):
    """The renamed tools of one request. `adapt` renames in the request; the fixup restores names in the answer."""

    def __init__(self, names: dict[str, str]) -> None:
        """names: the client's name → the name to send."""
        self._sent = names
        self._known = {sent: known for known, sent in names.items()}

    @classmethod
    def of(cls, fields: dict[str, Raw]) -> Self | None:
        """Returns None if every declared name follows the rule."""
        if "tools" not in fields or _suspect(fields["tools"]) is None:
            return None
        tools = decode(fields["tools"])
        declared = [name for tool in tools if isinstance(name := _function(tool).get("name"), str)]
        names = _allowed(declared)
        return cls(names) if names else None

    def adapt(self, fields: dict[str, Raw]) -> None:
        for field, places in (("tools", _tools), ("tool_choice", _choice), ("messages", _past)):
            if field in fields:
                value = decode(fields[field])
                self._rename(places(value), self._sent)
                fields[field] = Raw(encode(value))

    def answer(self, answer: dict[str, Any]) -> None:
        self._restore(answer, "message")

    def chunk(self, chunk: dict[str, Any]) -> None:
        self._restore(chunk, "delta")

    def _restore(self, body: dict[str, Any], part: str) -> None:
        for choice in body.get("choices") or ():
            message = choice.get(part) if isinstance(choice, dict) else None
            if isinstance(message, dict):
                self._rename(map(_function, message.get("tool_calls") or ()), self._known)

    @staticmethod
    def _rename(holders: Iterable[dict[str, Any]], names: dict[str, str]) -> None:
        for holder in holders:
            if isinstance(name := holder.get("name"), str) and name in names:
                holder["name"] = names[name]


def _allowed(declared: list[str]) -> dict[str, str]:
    """Maps each forbidden name to a unique allowed one."""
    taken = {name for name in declared if _RULE.fullmatch(name)}
    names: dict[str, str] = {}
    numbers: Counter[str] = Counter()
    for name in declared:
        if name in taken or name in names:
            continue
        made = _FORBIDDEN.sub("_", name)[:LONGEST] or "tool"
        stem = made[: LONGEST - NUMBER]
        while made in taken:
            numbers[stem] += 1
            made = f"{stem}_{numbers[stem] + 1}"
        taken.add(made)
        names[name] = made
    return names


def _function(holder: Any) -> dict[str, Any]:
    function = holder.get("function") if isinstance(holder, dict) else None
    return function if isinstance(function, dict) else {}


def _tools(tools: Any) -> Iterable[dict[str, Any]]:
    return map(_function, tools if isinstance(tools, list) else ())


def _choice(choice: Any) -> Iterable[dict[str, Any]]:
    return [_function(choice)]


def _past(messages: Any) -> Iterable[dict[str, Any]]:
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict):
            yield from _tools(message.get("tool_calls"))
            if message.get("role") == "tool":
                yield message

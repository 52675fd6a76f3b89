"""Repairs the past of a conversation so that every engine and chat template can read it.

Clients replay broken things: arguments as the model once wrote them, results without their call, one id for several
calls. Engines then refuse the whole request, or misread it silently.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from msgspec import Struct

from gateway.errors import ProviderInvalidRequest
from gateway.wire.body import check_id
from gateway.wire.chat import decode
from gateway.wire.conversation import text_part
from normalizers import FormatSpec
from normalizers.values.coerce import read_container
from normalizers.write.render import render_result

ID_LENGTH = 9
"""Length of new ids: Mistral's templates accept nine letters and digits only."""

LONGEST_ARGUMENTS = 2_000_000
"""Characters of one call's arguments, which are read as JSON: above any context window."""


_NO_FORMAT = FormatSpec("")

NOTHING: Mapping[str, int] = {}
"""The counts of a conversation that needs no repair."""


def repair_history(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], Mapping[str, int]]:
    """The repaired messages, and how many repairs they took: `arguments`, `ids`, `orphan_results`.

    arguments: arguments that were no JSON object. We read them as one if we can; else the original text becomes the
    value of `malformed`. ids: calls without an id or with another call's, and results that we matched to their call by
    its name or place. orphan_results: results without a call, which become a user's message.

    Raises ProviderInvalidRequest for an id or arguments that are too long, and for a call of a custom tool.
    """
    repairs = _Repairs()
    return [repairs.message(message) for message in messages], repairs.counts


class _Call(Struct):
    id: str
    name: str
    turn: int
    answered: bool = False


class _Repairs:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._calls = self._turns = 0
        self._given: dict[str, deque[_Call]] = {}
        """By the id that the client gave it, the calls that may still be unanswered, the oldest first."""
        self._turn: deque[_Call] = deque()
        """The same for the calls of the last message that has any."""
        self._named: dict[str, deque[_Call]] = {}
        """The same, by name."""
        self._waiting = 0
        """How many of them are unanswered."""
        self._ids: set[str] = set()

    def message(self, message: dict[str, Any]) -> dict[str, Any]:
        message = _present(message)
        calls = message.get("tool_calls")
        if isinstance(calls, list) and calls:
            self._turns += 1
            self._turn, self._named, self._waiting = deque(), {}, 0
            return {**message, "tool_calls": [self._call(call) for call in calls]}
        return self._result(message) if message.get("role") == "tool" else message

    def _call(self, call: Any) -> Any:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            if isinstance(call, dict) and call.get("type") == "custom":
                place = "messages.tool_calls.type"
                raise ProviderInvalidRequest(f"{place}: no calls of custom tools on this API", param=place)
            return call  # the engine will explain what is wrong
        given = call.get("id")
        given = check_id(given, "messages.tool_calls.id") if isinstance(given, str) else ""
        made = given
        if not given or given in self._ids:
            self.counts["ids"] += 1
            made = self._new_id(given)
        self._ids.add(made)
        one = _Call(made, str(function.get("name") or ""), self._turns)
        self._calls += 1
        self._waiting += 1
        self._turn.append(one)
        self._named.setdefault(one.name, deque()).append(one)
        if given:
            self._given.setdefault(given, deque()).append(one)
        arguments = function.get("arguments")
        repaired = arguments if isinstance(arguments, dict) else self._arguments(arguments)
        return {**call, "id": made, "function": {**function, "arguments": repaired}}

    def _new_id(self, given: str) -> str:
        """The same for the same conversation, so that the engine's prompt cache still fits."""
        number = self._calls
        while (made := sha256(f"{given}/{number}".encode()).hexdigest()[:ID_LENGTH]) in self._ids:
            number += 1
        return made

    def _arguments(self, arguments: Any) -> str:
        if isinstance(arguments, str) and len(arguments) > LONGEST_ARGUMENTS:
            place = "messages.tool_calls.function.arguments"
            raise ProviderInvalidRequest(f"{place}: have over {LONGEST_ARGUMENTS} characters", param=place)
        if isinstance(arguments, str) and _is_object(arguments):
            return arguments
        self.counts["arguments"] += 1
        return _repaired(arguments)

    def _result(self, message: dict[str, Any]) -> dict[str, Any]:
        given = message.get("tool_call_id")
        call = _first(self._given.get(given)) if isinstance(given, str) else None
        if call is None:
            name = message.get("name")
            call = _first(self._named.get(name)) if isinstance(name, str) else None
            # Its id is missing or unknown: match it if only one call waits, or by order if it has no id.
            if call is None and (self._waiting == 1 or not given):
                call = _first(self._turn)
            self.counts["ids" if call else "orphan_results"] += 1
        if call is None:
            return result_in_words(message, message.get("name") or "a tool")
        call.answered = True
        self._waiting -= call.turn == self._turns
        return {**message, "tool_call_id": call.id}


def _present(message: dict[str, Any]) -> dict[str, Any]:
    """A call or a result of the deprecated `functions` in the format of tools: no template has a place for it."""
    call = message.get("function_call")
    if isinstance(call, dict) and not message.get("tool_calls"):
        rest = {name: value for name, value in message.items() if name != "function_call"}
        return {"content": None, **rest, "tool_calls": [{"type": "function", "function": call}]}
    return {**message, "role": "tool"} if message.get("role") == "function" else message


def _first(calls: deque[_Call] | None) -> _Call | None:
    """The first unanswered one. Forgets the answered ones before it."""
    while calls and calls[0].answered:
        calls.popleft()
    return calls[0] if calls else None


def result_in_words(message: dict[str, Any], name: str, spec: FormatSpec = _NO_FORMAT) -> dict[str, Any]:
    """A call's result as a user's message: its text, as the format has it, then pictures and other parts."""
    content = message.get("content")
    if not isinstance(content, list):
        is_text = content is None or isinstance(content, str)
        content = [text_part((content or "") if is_text else json.dumps(content, ensure_ascii=False))]
    parts = [part for part in content if isinstance(part, dict)]
    text = render_result(spec, name, "".join(str(part.get("text", "")) for part in parts))
    others = [part for part in parts if "text" not in part]
    return {"role": "user", "content": [text_part(text), *others] if others else text}


def _is_object(text: str) -> bool:
    try:
        return isinstance(decode(text), dict)
    except (ValueError, RecursionError):  # msgspec.DecodeError and UnicodeDecodeError are ValueErrors
        return False


def _repaired(arguments: Any) -> str:
    if arguments is None or arguments == "":
        return "{}"
    if isinstance(arguments, str):
        text: str = arguments
        try:
            value = decode(arguments)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, str):
            text = value  # it was encoded twice
        elif value is None and text.strip() == "null":
            return "{}"
        read = read_container(text.strip()) if text.strip()[:1] == "{" else None
        if read is not None and _is_object(read):
            return read
    return json.dumps({"malformed": arguments}, ensure_ascii=False)

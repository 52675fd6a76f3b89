"""A conversation's past, put so that every engine and chat template can read it.

What a client replays may be broken: arguments as the model once wrote them, results of calls that were cut away, one
id for several calls. Engines refuse the whole request for it, or read it wrong without a word.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from msgspec import Raw, Struct

from gateway.wire.chat import decode, encode
from normalizers.values.coerce import read_container

has_calls = re.compile(rb'"(?:tool_calls|tool_call_id|tool)"').search
"""Whether raw messages may hold calls or results; a false alarm costs time alone."""

ID_LENGTH = 9
"""Of ids made here: Mistral's templates take nine letters and digits only."""


NOTHING: Mapping[str, int] = {}
"""Of `repair_history`, where nothing was mended."""


def repair_history(fields: dict[str, Raw]) -> Mapping[str, int]:
    """Mends `messages`, and counts what was mended: `arguments`, `ids`, `orphan_results`.

    arguments: the arguments of a call that were no JSON object. What can be read as one is; else the text as it came
    is the value of `malformed`. ids: calls without an id or with one that another call has, and results that were
    led to their call by its name or place. orphan_results: results of no call, which become a user's message.
    """
    messages = decode(fields["messages"])
    healing = _Healing()
    healed = [healing.message(message) for message in messages]
    if healing.counts:
        fields["messages"] = Raw(encode(healed))
    return healing.counts


class _Call(Struct):
    given: str
    id: str
    name: str
    answered: bool = False


class _Healing:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._calls: list[_Call] = []
        self._turn: list[_Call] = []
        self._ids: set[str] = set()

    def message(self, message: dict[str, Any]) -> dict[str, Any]:
        calls = message.get("tool_calls")
        if isinstance(calls, list) and calls:
            self._turn = []
            return {**message, "tool_calls": [self._call(call) for call in calls]}
        if message.get("role") == "tool":
            return self._result(message)
        return message

    def _call(self, call: Any) -> Any:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            return call  # the engine says what is wrong with it
        given = call.get("id")
        given = given if isinstance(given, str) else ""
        made = given
        if not given or given in self._ids:
            self.counts["ids"] += 1
            made = self._new_id(given)
        self._ids.add(made)
        one = _Call(given, made, str(function.get("name") or ""))
        self._calls.append(one)
        self._turn.append(one)
        arguments = function.get("arguments")
        mended = arguments if isinstance(arguments, dict) else self._arguments(arguments)
        return {**call, "id": made, "function": {**function, "arguments": mended}}

    def _new_id(self, given: str) -> str:
        """The same for the same conversation, so that the engine still knows the prompt."""
        number = len(self._calls)
        while (made := sha256(f"{given}/{number}".encode()).hexdigest()[:ID_LENGTH]) in self._ids:
            number += 1
        return made

    def _arguments(self, arguments: Any) -> str:
        if isinstance(arguments, str) and _is_object(arguments):
            return arguments
        self.counts["arguments"] += 1
        return _mended(arguments)

    def _result(self, message: dict[str, Any]) -> dict[str, Any]:
        given = message.get("tool_call_id")
        call = next((one for one in self._calls if not one.answered and one.given and one.given == given), None)
        if call is None:
            waiting = [one for one in self._turn if not one.answered]
            named = [one for one in waiting if one.name == message.get("name")]
            # With an id of nobody, or none: it is clear where it belongs if only one can be meant, or by the order.
            call = named[0] if named else waiting[0] if waiting and (len(waiting) == 1 or not given) else None
            self.counts["ids" if call else "orphan_results"] += 1
        if call is None:
            name = message.get("name") or "a tool"
            content = message.get("content")
            text = content if isinstance(content, str) else _text(content)
            return {"role": "user", "content": f"Result of {name}:\n{text}"}
        call.answered = True
        return {**message, "tool_call_id": call.id}


def _is_object(text: str) -> bool:
    try:
        return isinstance(decode(text), dict)
    except (ValueError, RecursionError):  # msgspec.DecodeError and UnicodeDecodeError are ValueErrors
        return False


def _mended(arguments: Any) -> str:
    if arguments is None or arguments == "":
        return "{}"
    if isinstance(arguments, str):
        text: str = arguments
        try:
            value = decode(arguments)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, str):
            text = value  # encoded twice
        elif value is None and text.strip() == "null":
            return "{}"
        read = read_container(text.strip()) if text.strip()[:1] == "{" else None
        if read is not None and _is_object(read):
            return read
    return json.dumps({"malformed": arguments}, ensure_ascii=False)


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else json.dumps(content, ensure_ascii=False)

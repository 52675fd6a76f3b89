"""Corrects tool calls that the engine parsed itself, fragment by fragment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.wire.chat import decode, encode
from normalizers.base import new_call_id


class _Call:
    """index, id: those sent to the client; index is None for a dropped call. dropped: the warning code."""

    __slots__ = ("dropped", "engine_id", "id", "index", "name", "parts")

    def __init__(self, engine_id: str | None, name: str) -> None:
        self.engine_id = engine_id
        self.name = name
        self.parts: list[str] = []
        self.index: int | None = None
        self.id = ""
        self.dropped = ""


class NativeCalls:
    """Guarantees that every call has a type, a unique id, an index from `indices`, and string arguments.

    A call without arguments ends with `{}`. allow: calls are allowed; parallel: more than one call is allowed.
    """

    def __init__(self, indices: Iterator[int], *, allow: bool, parallel: bool) -> None:
        self._indices = indices
        self._allow = allow
        self._parallel = parallel
        self._calls: list[_Call] = []
        self._current: dict[int, _Call] = {}  # by the engine's index
        self._last = 0
        self._ids: set[str] = set()
        self.called = False

    def feed(self, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the corrected fragments."""
        return [clean for call in calls if (clean := self._clean(call)) is not None]

    def finish(self) -> list[dict[str, Any]]:
        """Returns the fragments that complete calls without arguments."""
        return [
            {"index": call.index, "function": {"arguments": "{}"}}
            for call in self._calls
            if call.index is not None and not any(call.parts)
        ]

    def warnings(self) -> list[dict[str, str]]:
        """A warning for each dropped call."""
        return [{"code": call.dropped, "text": call.name + "".join(call.parts)} for call in self._calls if call.dropped]

    def _clean(self, call: dict[str, Any]) -> dict[str, Any] | None:
        function = call.get("function") or {}
        name = function.get("name") or None
        arguments = function.get("arguments")
        if arguments is None:
            arguments = ""
        elif not isinstance(arguments, str):
            arguments = encode(arguments).decode()
        key = call.get("index")
        engine_id = call.get("id") or None
        if not isinstance(key, int):
            key = self._last + 1 if name and self._current else self._last
        self._last = key
        current = self._current.get(key)
        starts = current is None or (name is not None and _is_another(current, engine_id, name, arguments))
        if current is None or starts:
            current = self._current[key] = self._start(engine_id, name or "")
        if arguments:
            current.parts.append(arguments)
        if current.index is None:
            return None
        if starts:
            return {
                **call,
                "index": current.index,
                "id": current.id,
                "type": "function",
                "function": {**function, "name": current.name, "arguments": arguments},
            }
        clean = {k: v for k, v in call.items() if k not in ("id", "type")}
        clean["index"] = current.index
        clean["function"] = {"arguments": arguments}
        return clean

    def _start(self, engine_id: str | None, name: str) -> _Call:
        call = _Call(engine_id, name)
        self._calls.append(call)
        if not self._allow:
            call.dropped = "calls_not_allowed"
        elif self.called and not self._parallel:
            call.dropped = "parallel_call_dropped"
        else:
            self.called = True
            call.index = next(self._indices)
            call.id = engine_id if engine_id is not None and engine_id not in self._ids else new_call_id()
            self._ids.add(call.id)
        return call


def _is_another(current: _Call, engine_id: str | None, name: str, arguments: str) -> bool:
    """Whether a fragment with a name starts a new call at an index that already has one.

    Some engines give all calls the index 0, some give them all one id, and others repeat the name in each fragment.
    """
    if engine_id is not None and current.engine_id is not None and engine_id != current.engine_id:
        return True
    if name != current.name:
        return True
    if not arguments.strip():
        return False
    try:
        decode("".join(current.parts))
    except (msgspec.DecodeError, RecursionError):
        return False
    return True

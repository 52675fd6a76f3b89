"""Reads tool calls that the engine parsed itself, fragment by fragment."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from gateway.errors import ProviderInvalidResponse
from gateway.wire.chat import encode
from gateway.wire.lenient import EscapeJoiner, joined, without_half_escapes
from normalizers import Normalizer
from normalizers.base import new_call_id
from normalizers.values.strict_json import TooDeep, loads

MAX_CHARACTERS = 4 << 20
"""The most characters of all calls of an answer. More end the answer with an error, whole and streamed."""

_CALL_CHARACTERS = 64
"""Characters that a call counts besides its name and arguments, so that the number of calls is bounded, too."""

_SIGN = re.compile(r'["\\{}\[\]]')
CONTENT = frozenset(("unknown_tool", "syntax", "nested_too_deep", "arguments_not_an_object"))
"""The codes of calls that become content. Any other code only warns."""

Json = dict[str, Any]


class _Call:
    """A call so far.

    fields: its first fragment. index, id: those sent to the client; index is None while the client has nothing of it.
    parts, size: its arguments so far, and their characters. code: what is wrong with it; "" if nothing is.
    """

    __slots__ = (
        *("_depth", "_escaped", "_in_string"),
        *("code", "engine_id", "escapes", "fields", "id", "index", "name", "parts", "size"),
    )

    def __init__(self, fields: Json, engine_id: str | None, name: str) -> None:
        self.fields = fields
        self.engine_id = engine_id
        self.name = name
        self.parts: list[str] = []
        self.size = 0
        self.index: int | None = None
        self.id = ""
        self.code = ""
        self.escapes = EscapeJoiner()
        self._depth = 0
        self._in_string = self._escaped = False

    def add(self, arguments: str) -> None:
        self.parts.append(arguments)
        self.size += len(arguments)
        at = 1 if self._escaped else 0
        self._escaped = False
        while found := _SIGN.search(arguments, at):
            sign, at = found.group(), found.end()
            if sign == "\\":
                self._escaped = at == len(arguments)
                at += 1
            elif sign == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                self._depth += 1 if sign in "{[" else -1

    @property
    def balanced(self) -> bool:
        """Whether the arguments so far may be complete. Takes no longer for long ones."""
        return bool(self.parts) and not self._in_string and self._depth <= 0

    @property
    def written(self) -> str:
        """The arguments so far."""
        return "".join(self.parts)

    @property
    def text(self) -> str:
        """The call as content."""
        name = json.dumps(self.name, ensure_ascii=False)
        return f'{{"name": {name}, "arguments": {self.written.strip() or "{}"}}}'

    @property
    def warning(self) -> dict[str, str]:
        return {"code": self.code, "text": self.text if self.code in CONTENT else self.name + self.written}


class NativeCalls:
    """Guarantees that every call has a type, a unique id, an index from `indices`, and a JSON object as arguments.

    Calls are held back until the answer ends, since only then are they certain to be complete, and are then sent in one
    piece, after those in the answer's `text`. piecewise: each is sent as it arrives instead, and may turn out to be
    incomplete.

    A call without arguments has `{}`. A call of a tool that isn't declared, or with arguments that can't be read, is
    content, behind all other. If the answer's length cut the last call, it leaves as it is. allow: calls are allowed;
    parallel: more than one call is allowed.
    """

    def __init__(
        self,
        indices: Iterator[int],
        declared: Callable[[str], bool],
        text: Normalizer,
        *,
        allow: bool,
        parallel: bool,
        piecewise: bool = False,
    ) -> None:
        self._indices = indices
        self._declared = declared
        self._text = text
        self._allow = allow
        self._parallel = parallel
        self._piecewise = piecewise
        self._calls: list[_Call] = []
        self._current: dict[int, _Call] = {}  # by the engine's index
        self._last = 0
        self._ids: set[str] = set()
        self._size = 0
        self._ended = False
        self.called = False

    @property
    def held(self) -> tuple[str, int] | None:
        """The name of the call in progress, and how many characters of it have arrived; None if it isn't held back."""
        if self._piecewise or not self._calls or self._ended:
            return None
        call = self._calls[-1]
        return call.name, call.size

    def feed(self, calls: list[Json]) -> list[Json]:
        """Returns the fragments to send. Raises ProviderInvalidResponse if the calls become too long."""
        return [clean for call in calls if (clean := self._add(call)) is not None]

    def finish(self, reason: str | None) -> tuple[str, list[Json]]:
        """Ends the answer. Returns the calls that are content, and the remaining fragments to send."""
        self._ended = True
        last = self._calls[-1] if self._calls else None
        clean: list[Json] = []
        for call in self._calls:
            clean += self._end(call, cut=call is last and reason == "length")
        return "\n".join(call.text for call in self._calls if call.index is None and call.code in CONTENT), clean

    def warnings(self) -> list[dict[str, str]]:
        """A warning for each call that the client doesn't get, or that is incomplete."""
        return [call.warning for call in self._calls if call.code]

    def _add(self, fragment: Json) -> Json | None:
        """The fragments to send for this one."""
        function = fragment.get("function") or {}
        name = function.get("name") or ""
        arguments = function.get("arguments")
        if arguments is None:
            arguments = ""
        elif not isinstance(arguments, str):
            arguments = encode(arguments).decode()
        call = self._call_of(fragment, name, arguments)
        arguments = call.escapes.feed(arguments)
        self._size += len(name) + len(arguments)
        if self._size > MAX_CHARACTERS:
            raise ProviderInvalidResponse(f"the engine's calls are longer than {MAX_CHARACTERS:,} characters")
        if arguments := arguments if call.parts else arguments.lstrip():
            call.add(arguments)
        if not self._piecewise:
            return None
        if call.index is not None:
            kept = {key: value for key, value in fragment.items() if key not in ("id", "type")}
            return {**kept, "index": call.index, "function": {"arguments": arguments}}
        return self._start(call, call.written) if call.name and not call.code and self._may_leave(call) else None

    def _call_of(self, fragment: Json, name: str, arguments: str) -> _Call:
        """The call that the fragment belongs to, or begins."""
        key, engine_id = fragment.get("index"), fragment.get("id") or None
        if not isinstance(key, int):
            key = self._last + 1 if name and self._current else self._last
        self._last = key
        call = self._current.get(key)
        if call is not None and not (name and _is_another(call, engine_id, name, arguments)):
            call.name = call.name or name
            return call
        call = self._current[key] = _Call(fragment, engine_id, name)
        self._calls.append(call)
        self._size += _CALL_CHARACTERS
        return call

    def _end(self, call: _Call, *, cut: bool) -> Iterator[Json]:
        """Judges a call that has ended. cut: if it is incomplete, the answer's length limit cut it."""
        if rest := call.escapes.finish():
            call.add(rest)
            if call.index is not None:
                yield {"index": call.index, "function": {"arguments": rest}}
        written = call.written
        object, fault = _object(written)
        cut = cut and not call.balanced and written.lstrip()[:1] in ("{", "")
        if cut:
            fault = "truncated_call"
        if call.index is not None:
            call.code = fault
            if not written:
                yield {"index": call.index, "function": {"arguments": "{}"}}
        elif not self._declared(call.name):
            call.code = "unknown_tool"
        elif fault and not (cut and written):
            call.code = fault
        elif self._may_leave(call):
            call.code = fault
            yield self._start(call, object or written)
            call.parts.clear()

    def _may_leave(self, call: _Call) -> bool:
        """Applies the policies on whole calls."""
        if not self._declared(call.name):
            call.code = "unknown_tool"
        elif not self._allow:
            call.code = "calls_not_allowed"
        elif (self.called or self._text.called) and not self._parallel:
            call.code = "parallel_call_dropped"
        return not call.code

    def _start(self, call: _Call, arguments: str) -> Json:
        self.called = True
        call.index = next(self._indices)
        engine_id = call.engine_id
        call.id = engine_id if engine_id is not None and engine_id not in self._ids else new_call_id()
        self._ids.add(call.id)
        function = {**(call.fields.get("function") or {}), "name": call.name, "arguments": arguments}
        return {**call.fields, "index": call.index, "id": call.id, "type": "function", "function": function}


def _object(written: str) -> tuple[str, str]:
    """The JSON object that the arguments are, and the code of what is wrong with them; one of the two is empty."""
    if not written:
        return "{}", ""
    try:
        value = loads(written)
        if isinstance(value, str):  # some engines encode them twice
            written = without_half_escapes(joined(value)[0])
            value = loads(written)
    except TooDeep:
        return "", "nested_too_deep"
    except ValueError:
        return "", "syntax"
    if value is None:
        return "{}", ""
    return (written, "") if isinstance(value, dict) else ("", "arguments_not_an_object")


def _is_another(call: _Call, engine_id: str | None, name: str, arguments: str) -> bool:
    """Whether a fragment with a name starts a new call at an index that already has one.

    Some engines give all calls the index 0, some give them all one id, and others repeat the name in each fragment.
    """
    if engine_id is not None and call.engine_id is not None and engine_id != call.engine_id:
        return True
    if call.name and name != call.name:
        return True
    return bool(arguments.strip()) and call.balanced

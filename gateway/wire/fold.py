"""Joins the chunks of a streamed chat completion into the whole answer, in time linear in their length."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gateway.errors import ProviderInvalidResponse

Json = dict[str, Any]


class Fold:
    """Takes decoded chunks, returns the whole answer's body. Raises ProviderInvalidResponse for a malformed chunk.

    Joins texts, tool call arguments, log probabilities and lists, such as `annotations`; every other field keeps its
    last value that isn't null.
    """

    __slots__ = ("choices", "fields")

    def __init__(self, chunks: Iterable[Json] = ()) -> None:
        self.fields: Json = {}
        """The answer's own fields, without `choices`."""
        self.choices: dict[int, FoldedChoice] = {}
        for chunk in chunks:
            self.add(chunk)

    def add(self, chunk: Any) -> None:
        self.add_fields(chunk)
        for part in parts(chunk):
            self.add_choice(part)

    def add_fields(self, chunk: Any) -> None:
        """Adds all but the choices."""
        if not isinstance(chunk, dict):
            raise malformed("it is not an object")
        fields = self.fields
        for name, value in chunk.items():
            if (value is not None or name not in fields) and name != "choices":
                fields[name] = value

    def add_choice(self, part: Json) -> list[int]:
        """Adds one of the chunk's `parts`. Returns the call number of each of its tool call fragments."""
        index = part.get("index", 0)
        if type(index) is not int:
            raise malformed(f"a choice's index is {index!r}")
        if (choice := self.choices.get(index)) is None:
            choice = self.choices[index] = FoldedChoice(index)
        return choice.add(part)

    def body(self) -> Json:
        """The whole answer, its choices in order."""
        choices = [self.choices[index].whole() for index in sorted(self.choices)]
        return {**self.fields, "object": "chat.completion", "choices": choices}


def parts(chunk: Json) -> list[Json]:
    """The chunk's parts of choices."""
    choices = chunk.get("choices")
    if choices is None:
        return []
    if not isinstance(choices, list):
        raise malformed("its choices are not an array")
    for part in choices:
        if not isinstance(part, dict):
            raise malformed("a choice is not an object")
    return choices


class FoldedChoice:
    """One choice of the answer so far."""

    __slots__ = ("_calls", "_current", "_fields", "_highest", "_logprobs", "_message", "_texts")

    def __init__(self, index: int) -> None:
        self._fields: Json = {"index": index, "finish_reason": None}
        self._message: Json = {"role": "assistant", "content": None}
        self._texts: dict[str, list[str]] = {}
        self._logprobs: Json | None = None
        self._calls: dict[int, _Call] = {}
        """By the server's index."""
        self._current = self._highest = -1
        """The server's indices: the last fragment's call, and the highest so far."""

    @property
    def finish_reason(self) -> Any:
        return self._fields["finish_reason"]

    def add(self, part: Json) -> list[int]:
        numbers: list[int] = []
        for name, value in part.items():
            if value is None or name == "index":
                continue
            if name == "delta":
                numbers = self._add_delta(value)
            elif name == "logprobs" and isinstance(value, dict):
                self._add_logprobs(value)
            else:
                self._fields[name] = value
        return numbers

    def _add_delta(self, delta: Any) -> list[int]:
        if not isinstance(delta, dict):
            raise malformed("a delta is not an object")
        numbers: list[int] = []
        for name, value in delta.items():
            if name == "tool_calls":
                if value is not None and not isinstance(value, list):
                    raise malformed("tool_calls is not an array")
                numbers = [self._add_call(fragment) for fragment in value or ()]
            elif name != "role" and isinstance(value, str):
                if (texts := self._texts.get(name)) is None:
                    texts = self._texts[name] = []
                texts.append(value)
            elif isinstance(value, list) and isinstance(known := self._message.get(name), list):
                known.extend(value)
            elif value is not None:
                self._message[name] = [*value] if isinstance(value, list) else value
        return numbers

    def _add_call(self, fragment: Any) -> int:
        if not isinstance(fragment, dict):
            raise malformed("a tool call is not an object")
        function = fragment.get("function") or {}
        if not isinstance(function, dict):
            raise malformed("the function of a tool call is not an object")
        arguments = function.get("arguments") or ""
        if not isinstance(arguments, str):
            raise malformed("the arguments of a tool call are not a string")
        index = fragment.get("index")
        if type(index) is not int:  # some servers omit it; then an id starts a new call
            index = self._highest + 1 if fragment.get("id") or not self._calls else self._current
        self._current, self._highest = index, max(index, self._highest)
        if (call := self._calls.get(index)) is None:
            call = self._calls[index] = _Call(len(self._calls))
        call.fields.update((name, value) for name, value in fragment.items() if value and name not in _OWN)
        call.function.update((name, value) for name, value in function.items() if value and name != "arguments")
        call.arguments.append(arguments)
        return call.number

    def _add_logprobs(self, logprobs: Json) -> None:
        if self._logprobs is None:
            self._logprobs = {}
        for name, value in logprobs.items():
            if isinstance(value, list) and isinstance(known := self._logprobs.get(name), list):
                known.extend(value)
            elif value is not None or name not in self._logprobs:
                self._logprobs[name] = value

    def message(self) -> Json:
        """The choice's message. Its content is null only beside tool calls."""
        message = {**self._message, **{name: "".join(texts) for name, texts in self._texts.items()}}
        if self._calls:
            message["tool_calls"] = [call.whole() for call in self._calls.values()]
        elif message["content"] is None:
            message["content"] = ""
        return message

    def whole(self) -> Json:
        """The choice as in a whole answer."""
        choice = {**self._fields, "message": self.message()}
        return choice if self._logprobs is None else {**choice, "logprobs": self._logprobs}


_OWN = frozenset(("index", "function"))


class _Call:
    """A tool call so far. number: its place among its choice's calls."""

    __slots__ = ("arguments", "fields", "function", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.fields: Json = {"type": "function"}
        self.function: Json = {}
        self.arguments: list[str] = []

    def whole(self) -> Json:
        return {**self.fields, "function": {**self.function, "arguments": "".join(self.arguments)}}


def malformed(what: str) -> ProviderInvalidResponse:
    """The error for a chunk of the wrong shape."""
    return ProviderInvalidResponse(f"the engine sent a malformed chunk: {what}")

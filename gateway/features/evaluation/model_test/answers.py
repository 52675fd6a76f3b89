"""Parses an endpoint's answer, whole or streamed, strictly: records violations of OpenAI's format. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

Json = dict[str, Any]


class NotAnAnswer(ValueError):
    """A body with status 200 that isn't a chat completion, or a stream that was cut."""


@dataclass(frozen=True)
class RawCall:
    name: str
    arguments: str
    """As they were sent."""
    id: str | None = None

    def parsed(self) -> Any:
        """Raises ValueError if they aren't JSON."""
        return read_json(self.arguments)


@dataclass(frozen=True)
class ModelAnswer:
    content: str = ""
    reasoning: str = ""
    calls: tuple[RawCall, ...] = ()
    finish: str | None = None
    faults: tuple[str, ...] = ()
    """Violations of the wire format."""
    usage: Json = field(default_factory=dict)
    warned: tuple[str, ...] = ()
    """Codes of what a ctxgate says that it couldn't read or mended: `ctxgate.warnings`."""
    call_probability: float | None = None
    """How likely it was that a call begins, where a ctxgate with a `call_threshold` decided."""

    def plain(self) -> Json:
        """For samples.jsonl."""
        return {key: value for key, value in asdict(self).items() if value not in ("", (), None, {})}


def read_json(text: str | bytes) -> Any:
    """Strict JSON, in which half an emoji becomes U+FFFD: no file and no request can hold it.

    Raises ValueError, also for what is nested too deeply.
    """
    try:
        return _whole(json.loads(text, parse_constant=_no_constant))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _whole(value: Any) -> Any:
    """The value without halves of emojis; those that follow each other become one emoji."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_whole(name): _whole(each) for name, each in value.items()}
    return [_whole(each) for each in value] if isinstance(value, list) else value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def read_whole(body: Any, *, forced: bool = False) -> ModelAnswer:
    """The answer in a chat completion. `forced`: a named tool was asked for, where OpenAI ends with "stop".

    Raises NotAnAnswer.
    """
    try:
        (choice,) = body["choices"]
        message = choice["message"]
        content, listed = message.get("content"), [*(message.get("tool_calls") or ())]
        finish = choice.get("finish_reason")
        reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise NotAnAnswer(f"no chat completion: {str(body)[:200]}") from error
    faults: list[str] = []
    calls: list[RawCall] = []
    for index, call in enumerate(listed):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            faults.append(f"call {index} has no function.name")
            continue
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            faults.append(f"call {index}: arguments are no string")
            arguments = json.dumps(arguments)
        if call.get("type") != "function":
            faults.append(f"call {index}: type is {call.get('type')!r}")
        calls.append(RawCall(function["name"], arguments, call.get("id")))
    if not isinstance(content, str | None):
        faults.append("content is no string")
        content = json.dumps(content)
    faults += _common_faults(calls, finish, forced)
    told = _usage(body), _warned(body), _probability(body)
    return ModelAnswer(content or "", str(reasoning), tuple(calls), finish, tuple(faults), *told)


@dataclass
class StreamedCall:
    name: str = ""
    arguments: str = ""
    id: str | None = None


class StreamedParts:
    """Puts a stream together: `feed` each event's data, then `answer`."""

    def __init__(self) -> None:
        self._calls: list[StreamedCall] = []
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._finish: list[str] = []
        self._faults: list[str] = []
        self._usage: Json = {}
        self._warned: tuple[str, ...] = ()
        self._probability: float | None = None
        self._done = False

    def feed(self, data: str) -> bool:
        """Whether the event contains a part of the answer: text, reasoning or a piece of a call.

        Raises NotAnAnswer at an error frame and at what is no chunk.
        """
        if self._done:
            self._fault("an event after [DONE]")
            return False
        if data == "[DONE]":
            self._done = True
            return False
        try:
            chunk = json.loads(data)
            if "error" in chunk:
                raise NotAnAnswer(f"error within the stream: {_whole(str(chunk['error'])[:300])}")
            choices = chunk["choices"]
            self._usage = _usage(chunk) or self._usage
            self._warned += _warned(chunk)
            if (found := _probability(chunk)) is not None:
                self._probability = found
            return [self._choice(choice) for choice in choices].count(True) > 0
        except (TypeError, KeyError, AttributeError, json.JSONDecodeError, RecursionError) as error:
            raise NotAnAnswer(f"no chunk: {data[:200]}") from error

    def complete_calls(self) -> int:
        """How many calls are complete: those before the last, and the last if its arguments are an object."""
        if not self._calls:
            return 0
        try:
            return len(self._calls) - (not isinstance(read_json(self._calls[-1].arguments), dict))
        except ValueError:
            return len(self._calls) - 1

    def answer(self, *, forced: bool = False) -> ModelAnswer:
        """Raises NotAnAnswer if the stream never ended properly."""
        if not self._done:
            raise NotAnAnswer("the stream ended without [DONE]")
        if len(self._finish) != 1:
            self._fault(f"{len(self._finish)} finish reasons")
        finish = self._finish[-1] if self._finish else None
        # The halves of an emoji may come in two pieces.
        calls = [RawCall(_whole(call.name), _whole(call.arguments) or "{}", _whole(call.id)) for call in self._calls]
        faults = [*self._faults, *_common_faults(calls, finish, forced)]
        content, reasoning = _whole("".join(self._content)), _whole("".join(self._reasoning))
        told = self._warned, self._probability
        return ModelAnswer(content, reasoning, tuple(calls), finish, tuple(faults), self._usage, *told)

    def _choice(self, choice: Json) -> bool:
        delta = choice.get("delta") or {}
        if finish := choice.get("finish_reason"):
            self._finish.append(finish)
        text = self._text("content", delta.get("content"))
        thought = self._text("reasoning", delta.get("reasoning_content") or delta.get("reasoning"))
        self._content.append(text)
        self._reasoning.append(thought)
        pieces = delta.get("tool_calls") or []
        for piece in pieces:
            self._piece(piece)
        return bool(text or thought or pieces)

    def _piece(self, piece: Json) -> None:
        index, function = piece.get("index"), piece.get("function") or {}
        if not isinstance(index, int) or index not in (len(self._calls) - 1, len(self._calls)):
            self._fault(f"call index {index!r} after {len(self._calls)} calls")
            index = min(len(self._calls), index) if isinstance(index, int) and index >= 0 else len(self._calls)
        if index == len(self._calls):
            self._calls.append(StreamedCall(id=piece.get("id")))
            if not function.get("name"):
                self._fault(f"call {index} begins without a name")
        elif function.get("name"):
            self._fault(f"call {index}: the name was sent twice")
        call = self._calls[index]
        call.name += function.get("name") or ""
        call.arguments += function.get("arguments") or ""

    def _text(self, name: str, value: Any) -> str:
        if isinstance(value, str | None):
            return value or ""
        self._fault(f"{name} is no string")
        return json.dumps(value)

    def _fault(self, text: str) -> None:
        self._faults.append(text)


def _usage(body: Json) -> Json:
    found = body.get("usage")
    return found if isinstance(found, dict) else {}


def _warned(body: Json) -> tuple[str, ...]:
    told = body.get("ctxgate")
    warnings = told.get("warnings") if isinstance(told, dict) else None
    if not isinstance(warnings, list):
        return ()
    return tuple(str(warning.get("code")) for warning in warnings if isinstance(warning, dict))


def _probability(body: Json) -> float | None:
    told = body.get("ctxgate")
    found = told.get("call_probability") if isinstance(told, dict) else None
    return float(found) if isinstance(found, int | float) and 0 <= found <= 1 else None


def _common_faults(calls: list[RawCall], finish: str | None, forced: bool) -> list[str]:
    faults = []
    ids = [call.id for call in calls]
    if not all(isinstance(id, str) and id for id in ids):
        faults.append("a call has no id")
    elif len(set(ids)) < len(ids):
        faults.append("two calls have one id")
    if calls and finish not in ("tool_calls", "length", *(("stop",) if forced else ())):
        faults.append(f"finish_reason is {finish!r} with calls")
    if not calls and finish == "tool_calls":
        faults.append("finish_reason is 'tool_calls' without calls")
    if finish is None:
        faults.append("no finish_reason")
    return faults

"""Whether an answer holds to what the request constrains it to, and how a model is asked again if it doesn't."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.errors import GatewayError, ProviderInvalidRequest, ProviderInvalidResponse, StructuredOutputInvalid
from gateway.request.constraints import Constraint, Way
from gateway.request.grammars import tool_name
from gateway.wire.chat import ChatRequest, decode, encode

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

Json = dict[str, Any]

ATTEMPTS = 3
"""Times that a model is asked for an answer which conforms."""

MAX_FAULT = 500
"""Characters of a fault that are told; it may quote the answer."""

SCHEMA_FIELD = "response_format.json_schema.schema"

MAX_HELD = 64 * 1024 * 1024
"""Bytes of a stream that is held back."""


class Enforced(msgspec.Struct, frozen=True):
    """How an answer is held to its constraint. check: where it has to be looked at."""

    way: Way
    check: Check | None = None

    def told(self, attempts: int) -> Json:
        """What the answer says of it."""
        return {"by": self.way, "attempts": attempts}


class AnswerBuffer:
    """A stream's payloads, kept until all have come."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self._size = 0

    def add(self, payloads: list[bytes]) -> None:
        """Raises ProviderInvalidResponse beyond MAX_HELD bytes."""
        self._size += sum(map(len, payloads))
        if self._size > MAX_HELD:
            raise ProviderInvalidResponse(f"an answer that has to be checked exceeds {MAX_HELD} bytes")
        self.payloads += payloads


class Check:
    """Whether answers hold to a constraint."""

    def __init__(self, wish: Constraint, request: ChatRequest) -> None:
        """Raises ProviderInvalidRequest for a schema that is none."""
        self.wish = wish
        tools = decode(request.tools) if request.tools is not None else []
        functions = {tool_name(tool): tool.get("function", tool) for tool in tools}
        self._tools = {name: functions[name] for name in wish.must or functions if name in functions}
        self._schema = Schema.of(wish.schema, SCHEMA_FIELD) if wish.schema is not None else None

    def whole(self, body: bytes, enforced: Json) -> bytes | tuple[Json, str]:
        """The body of a whole answer that conforms, `enforced` told in it; else a message and what is wrong with it."""
        answer = decode(body)
        for frame in answer["choices"]:
            if fault := self.fault(frame["message"], frame.get("finish_reason")):
                return frame["message"], fault
        answer["ctxgate"] = {**(answer.get("ctxgate") or {}), "enforced": enforced}
        return encode(answer)

    def stream(self, payloads: list[bytes], enforced: Json) -> list[bytes] | tuple[Json, str]:
        """As `whole`, of all payloads of a stream; `enforced` is told in the last chunk of each choice."""
        chunks = [decode(payload) for payload in payloads]
        contents = {}
        for index, (message, reason) in folded(chunks).items():
            before = message["content"]
            if fault := self.fault(message, reason):
                return message, fault
            if message["content"] != before:
                contents[index] = message["content"]
        return retold(chunks, contents, enforced)

    def fault(self, message: Json, reason: str | None) -> str | None:
        """What is wrong with a choice's message; None: nothing. Text in a code fence is taken out of it, in place."""
        calls = message.get("tool_calls") or []
        if self.wish.kind == "call":
            return self._calls(calls)
        if calls and self.wish.kind == "json or call":
            return None
        content = message.get("content") or ""
        text = unfenced(content)
        try:
            value = decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if reason == "length" and text[:1] in ("{", "["):
                return None  # cut by max_tokens, which its finish_reason tells
            return f"it is not JSON ({error})"
        if self._schema is None:
            fault = None if isinstance(value, dict) else "it is no JSON object"
        else:
            fault = self._schema.violation(value)
        if fault is None and text != content:
            message["content"] = text
        return fault

    def _calls(self, calls: Sequence[Json]) -> str | None:
        if not calls:
            return "no tool was called"
        for call in calls:
            function = call.get("function") or {}
            name = function.get("name")
            if name not in self._tools:
                return f"the tool {name!r} was called"
            tool = self._tools[name]
            if tool.get("strict") is True and isinstance(tool.get("parameters"), dict):
                arguments = decode(function.get("arguments") or "{}")
                if fault := Schema.of(tool["parameters"], "tools").violation(arguments):
                    return f"the arguments of {name} don't fit: {fault}"
        return None

    def again(self, message: Mapping[str, Any], fault: str) -> list[Json]:
        """The messages with which the model is asked once more."""
        calls = [call.get("function") for call in message.get("tool_calls") or ()]
        said = message.get("content") or (encode(calls).decode() if calls else "(nothing)")
        correction = f"That answer can't be used: {fault}. {self.wish.told()}"
        return [{"role": "assistant", "content": said}, {"role": "user", "content": correction}]

    def unmet(self, fault: str) -> GatewayError:
        """The error for a model that didn't conform in all its attempts."""
        details = {"attempts": ATTEMPTS}
        told = f"the model didn't hold to it in {ATTEMPTS} attempts, and its engine can't be made to: {fault}"
        if self.wish.kind == "call":
            return ProviderInvalidRequest(
                f"tool_choice: {told}", code="tool_choice_unmet", param="tool_choice", details=details
            )
        return StructuredOutputInvalid(f"response_format: {told}", param="response_format", details=details)


_FENCE = re.compile(r"\s*```[\w-]*\n(.*?)\n?```\s*", re.DOTALL)


def unfenced(text: str) -> str:
    """The text in a Markdown code fence, where that is all there is."""
    found = _FENCE.fullmatch(text)
    return found[1] if found else text.strip()


class Schema:
    """A JSON Schema. Its references are followed within it, never fetched."""

    def __init__(self, schema: bytes, field: str) -> None:
        """field: of the request, for errors. Raises ProviderInvalidRequest for what is no JSON Schema."""
        from jsonschema import Draft202012Validator, SchemaError
        from jsonschema.validators import validator_for
        from referencing import Registry

        value = decode(schema)
        kind = validator_for(value, default=Draft202012Validator)
        try:
            kind.check_schema(value)
        except SchemaError as error:
            raise ProviderInvalidRequest(f"{field}: no JSON Schema: {error.message}", param=field) from None
        except OverflowError as error:  # a pattern's
            raise ProviderInvalidRequest(f"{field}: no JSON Schema: {error}", param=field) from None
        self._field = field
        self._text = encode(value).decode()
        self._validator: Validator = kind(value, registry=Registry())

    @staticmethod
    def of(schema: Json, field: str) -> Schema:
        """Agents send the same one with every turn."""
        return _schema(encode(schema), field)

    def violation(self, value: Any) -> str | None:
        """How a value breaks the schema, in words; None: it doesn't.

        Raises ProviderInvalidRequest for a schema that refers to what it doesn't hold, or whose patterns take too long.
        """
        from referencing.exceptions import Unresolvable

        from gateway.schema import worker

        try:
            fault = worker.violation(self._text, self._validator, value)
        except Unresolvable as unknown:
            message = f"{self._field}: the JSON Schema refers to what it doesn't hold: {unknown}"
            raise ProviderInvalidRequest(message, param=self._field) from None
        except worker.Unchecked as error:
            message = f"{self._field}: the JSON Schema can't be held to: {error}"
            raise ProviderInvalidRequest(message, param=self._field) from None
        except RecursionError:
            return "it is nested too deeply to be checked"
        return None if fault is None else f"{fault.json_path}: {fault.message}"[:MAX_FAULT]


_schema = lru_cache(maxsize=64)(Schema)


# Answers in chunks


def folded(chunks: Sequence[Json]) -> dict[int, tuple[Json, str | None]]:
    """Message and finish_reason of each choice, from a stream's clean chunks."""
    choices: dict[int, tuple[Json, str | None]] = {}
    for chunk in chunks:
        for frame in chunk.get("choices") or ():
            index = frame.get("index", 0)
            message, reason = choices.get(index, ({"content": "", "tool_calls": []}, None))
            delta = frame.get("delta") or {}
            message["content"] += delta.get("content") or ""
            calls = message["tool_calls"]
            for call in delta.get("tool_calls") or ():
                function = call.get("function") or {}
                while len(calls) <= call["index"]:
                    calls.append({"function": {"name": "", "arguments": ""}})
                known = calls[call["index"]]["function"]
                known["name"] += function.get("name") or ""
                known["arguments"] += function.get("arguments") or ""
            choices[index] = (message, frame.get("finish_reason") or reason)
    return choices


def retold(chunks: list[Json], contents: Mapping[int, str], enforced: Json) -> list[bytes]:
    """The chunks, with other content for the choices of `contents`, and `enforced` in the last of each."""
    made = []
    left = dict(contents)
    for chunk in chunks:
        kept = []
        frames = chunk.get("choices") or []
        for frame in frames:
            delta = frame.get("delta") or {}
            if frame.get("index", 0) in contents and delta.get("content"):
                new = left.pop(frame["index"], None)
                rest = {name: value for name, value in delta.items() if name != "content"}
                if new is None and not rest and not frame.get("finish_reason"):
                    continue
                frame["delta"] = rest if new is None else {**rest, "content": new}
            if frame.get("finish_reason"):
                chunk["ctxgate"] = {**(chunk.get("ctxgate") or {}), "enforced": enforced}
            kept.append(frame)
        if kept or not frames:
            made.append(encode({**chunk, "choices": kept} if frames else chunk))
    return made

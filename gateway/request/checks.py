"""Checks an answer against the request's constraint, and words the request to try again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.errors import GatewayError, ProviderInvalidRequest, ProviderInvalidResponse, StructuredOutputInvalid
from gateway.request.constraints import SCHEMA_FIELD, Constraint, Method
from gateway.request.grammars import MAX_SCHEMA
from gateway.schema.fault import TOO_DEEP, Checker, Compile, InvalidSchema, Unchecked
from gateway.wire.chat import decode, encode
from gateway.wire.fold import Fold

Json = dict[str, Any]

ATTEMPTS = 3
"""How often to ask a model for an answer that conforms, in all."""

MAX_FAULT = 500
"""The most characters of a fault that an error quotes; the fault may quote the answer."""

MAX_CALLS = 100
"""The most calls of one answer to check."""

MAX_HELD = 64 * 1024 * 1024
"""The most bytes of a stream to hold back."""


class Uncheckable(ProviderInvalidRequest):
    """A schema that no answer can be checked against within bounds."""


class Enforced(msgspec.Struct, frozen=True):
    """How an answer's constraint is enforced. check: what the answer must pass; None if a grammar makes it certain."""

    method: Method
    check: Check | None = None

    @property
    def trusted(self) -> bool:
        """Whether the engine enforces it, so that the answer needn't be held back: its end shows whether it did."""
        return self.method != "checked"

    def report(self, attempts: int) -> Json | None:
        """The `enforced` entry of the answer's `ctxgate` field; None if it needs none."""
        return None if self.trusted and attempts == 1 else {"by": self.method, "attempts": attempts}


class AnswerBuffer:
    """A stream's payloads, held back until all have arrived."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self._size = 0

    def add(self, payloads: list[bytes]) -> None:
        """Raises ProviderInvalidResponse beyond MAX_HELD bytes."""
        self._size += sum(map(len, payloads))
        if self._size > MAX_HELD:
            raise ProviderInvalidResponse(f"an answer that has to be checked exceeds {MAX_HELD} bytes")
        self.payloads += payloads


class _Function(msgspec.Struct, gc=False):
    name: Any = None
    strict: Any = None
    parameters: msgspec.Raw = msgspec.Raw(b"null")


class _Tool(_Function, gc=False):
    function: _Function | None = None


_decode_tools = msgspec.json.Decoder(list[_Tool]).decode


class Check:
    """Checks answers against a constraint."""

    def __init__(self, constraint: Constraint, tools: bytes | None, compile: Compile) -> None:
        """tools: the request's, as JSON. compile: makes the schemas' checkers; only the methods call it."""
        self.constraint = constraint
        self._compile = compile
        declared: list[_Function] = [tool.function or tool for tool in _decode_tools(tools or b"[]")]
        functions = {tool.name: tool for tool in declared if isinstance(tool.name, str)}
        self._tools = {name: functions[name] for name in constraint.must or functions if name in functions}

    def compile(self) -> None:
        """Compiles the schema of the text. Blocks for a bounded time.

        Raises ProviderInvalidRequest for a schema that isn't valid.
        """
        if self.constraint.schema is not None:
            self._checker(self.constraint.schema, SCHEMA_FIELD)

    def whole(self, body: bytes, enforced: Json | None, *, broken_off: bool = False) -> bytes | tuple[Json, str]:
        """The body of a whole answer that conforms, with `enforced` added; else its message and the fault.

        broken_off: the engine ended it, not `max_tokens`: what is cut doesn't conform.
        """
        answer = decode(body)
        for frame in answer["choices"]:
            if fault := self.fault(frame["message"], None if broken_off else frame.get("finish_reason")):
                return frame["message"], fault
        if enforced is not None:
            answer["ctxgate"] = {**(answer.get("ctxgate") or {}), "enforced": enforced}
        return encode(answer)

    def stream(
        self, payloads: list[bytes], enforced: Json | None, *, broken_off: bool = False
    ) -> list[bytes] | tuple[Json, str]:
        """As `whole`, for all payloads of a stream; the last chunk of each choice gets `enforced`."""
        chunks = [decode(payload) for payload in payloads]
        contents = {}
        for index, choice in Fold(chunks).choices.items():
            message = choice.message()
            before = message["content"]
            if fault := self.fault(message, None if broken_off else choice.finish_reason):
                return message, fault
            if message["content"] != before:
                contents[index] = message["content"]
        return with_contents(chunks, contents, enforced)

    def begins(self, payloads: list[bytes]) -> bool | None:
        """Whether a stream, of which these come next, begins as an answer does that conforms. None: it hasn't begun.

        Reasoning counts, too: holding it back would hide it for long.
        """
        for frame in (frame for payload in payloads for frame in decode(payload).get("choices") or ()):
            delta = frame.get("delta") or {}
            if delta.get("reasoning") or delta.get("tool_calls"):
                return bool(delta.get("reasoning")) or self.constraint.kind != "json"
            if text := (delta.get("content") or "").lstrip():
                return self.constraint.kind != "call" and text[0] in "{["
        return None

    def fault(self, message: Json, reason: str | None) -> str | None:
        """The fault of a choice's message, or None; a refusal has none. Takes text out of its code fence, in place."""
        calls = message.get("tool_calls") or []
        if message.get("refusal") and not calls and not message.get("content"):
            return None
        if self.constraint.kind == "call":
            return self._calls(calls)
        if calls and self.constraint.kind == "json or call":
            return None
        content = message.get("content") or ""
        text = unfenced(content)
        try:
            value = decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if reason == "length" and text[:1] in ("{", "["):
                return None  # max_tokens cut it, as its finish_reason says
            return f"it is not JSON ({error})"
        if self.constraint.schema is None:
            fault = None if isinstance(value, dict) else "it is not a JSON object"
        else:
            fault = self._violation(self.constraint.schema, SCHEMA_FIELD, value)
        if fault is None and text != content:
            message["content"] = text
        return fault

    def _calls(self, calls: Sequence[Json]) -> str | None:
        if not calls:
            return "no tool was called"
        if len(calls) > MAX_CALLS:
            return f"more than {MAX_CALLS} tools were called"
        for call in calls:
            function = call.get("function") or {}
            name = function.get("name")
            if name not in self._tools:
                return f"the tool {name!r} was called"
            tool = self._tools[name]
            schema = bytes(tool.parameters)
            if tool.strict is True and schema[:1] == b"{":
                try:
                    arguments = decode(function.get("arguments") or "{}")
                except (msgspec.DecodeError, RecursionError):
                    return f"the arguments of {name} are not JSON"
                if fault := self._violation(schema, "tools", arguments):
                    return f"the arguments of {name} don't fit: {fault}"
        return None

    def _violation(self, schema: bytes, field: str, value: Any) -> str | None:
        """How a value breaks the schema, in words, or None.

        field: the request's, for errors. Raises ProviderInvalidRequest for a schema that isn't valid or can't be
        checked within bounds.
        """
        try:
            fault = self._checker(schema, field).fault(value)
        except Unchecked as error:
            raise Uncheckable(f"{field}: the schema can't be checked: {error}", param=field) from None
        return None if fault is None else f"{fault.pointer or 'the value'}: {fault.message}"[:MAX_FAULT]

    def _checker(self, schema: bytes, field: str) -> Checker:
        if len(schema) > MAX_SCHEMA:
            raise ProviderInvalidRequest(f"{field}: a schema is longer than {MAX_SCHEMA} bytes", param=field)
        try:
            return self._compile(schema.decode())
        except InvalidSchema as error:
            kind = Uncheckable if str(error) == TOO_DEEP else ProviderInvalidRequest
            raise kind(f"{field}: not a valid JSON Schema: {error}", param=field) from None
        except Unchecked as error:
            raise Uncheckable(f"{field}: the schema can't be checked: {error}", param=field) from None

    def again(self, message: Mapping[str, Any], fault: str) -> list[Json]:
        """The messages that ask the model once more."""
        calls = [call.get("function") for call in message.get("tool_calls") or ()]
        said = message.get("content") or (encode(calls).decode() if calls else "(nothing)")
        correction = f"That answer can't be used: {fault}. {self.constraint.words()}"
        return [{"role": "assistant", "content": said}, {"role": "user", "content": correction}]

    def unmet(self, fault: str, attempts: int = ATTEMPTS) -> GatewayError:
        """The error for a model that didn't conform in all its attempts."""
        details = {"attempts": attempts}
        times = f"{attempts} attempt{'s' * (attempts > 1)}"
        reason = f"the model didn't hold to it in {times}, and its engine can't be made to: {fault}"
        if self.constraint.kind == "call":
            return ProviderInvalidRequest(
                f"tool_choice: {reason}", code="tool_choice_unmet", param="tool_choice", details=details
            )
        return StructuredOutputInvalid(f"response_format: {reason}", param="response_format", details=details)


def ends(payload: bytes) -> bool:
    """Whether a chunk ends one of its choices."""
    return any(frame.get("finish_reason") for frame in decode(payload).get("choices") or ())


def unfenced(text: str) -> str:
    """The text in a Markdown code fence, if there is nothing else."""
    found = re.fullmatch(r"\s*```[\w-]*\n(.*?)\n?```\s*", text, re.DOTALL)
    return found[1] if found else text.strip()


def with_contents(chunks: list[Json], contents: Mapping[int, str], enforced: Json | None) -> list[bytes]:
    """The chunks, with new content for the choices of `contents`; `enforced`, if any, in the last of each choice."""
    made = []
    left = dict(contents)
    for chunk in chunks:
        kept = []
        frames = chunk.get("choices") or []
        for frame in frames:
            delta = frame.get("delta") or {}
            index = frame.get("index", 0)
            if index in contents and delta.get("content"):
                new = left.pop(index, None)
                rest = {name: value for name, value in delta.items() if name != "content"}
                if new is None and not rest and not frame.get("finish_reason"):
                    continue
                frame["delta"] = rest if new is None else {**rest, "content": new}
            if frame.get("finish_reason") and enforced is not None:
                chunk["ctxgate"] = {**(chunk.get("ctxgate") or {}), "enforced": enforced}
            kept.append(frame)
        if kept or not frames:
            made.append(encode({**chunk, "choices": kept} if frames else chunk))
    return made

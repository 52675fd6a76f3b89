"""What every mapping shares: the checked call, the rules for its answer, and `config.extra`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

from gateway.errors import ProviderInvalidRequest, ProviderInvalidResponse
from gateway.provider.deltas import Delta
from gateway.provider.failures import Failure
from gateway.provider.messages import AnswerBlock, AssistantMessage, ImageBlock, Message, TextBlock, ToolCall
from gateway.provider.request import Capabilities, ResponseSchema, RuntimeConfig, Tool, ToolChoice
from gateway.provider.response import FinishReason, Response, Usage
from gateway.provider.structured import OutputSchema
from gateway.provider.validation import check_config, check_messages, check_tool_choice, check_tools
from gateway.schema.jsontext import dump_json
from gateway.schema.objects import ObjectSchema


class Reader(Protocol):
    """The events of one streamed answer, added up."""

    done: bool
    """Whether the end mark has come."""

    def feed(self, events: list[bytes]) -> Iterator[Delta]:
        """Yields the deltas of these events; ignores what follows the end mark.

        Raises the error of an error frame, and ProviderInvalidResponse for an event of another shape.
        """
        ...

    def body(self) -> dict[str, Any]:
        """The body of the whole answer.

        Raises ProviderInvalidResponse for a stream without an answer, ProviderUnavailable for one that broke off.
        """
        ...


@dataclass(frozen=True, slots=True)
class Call(ABC):
    """A checked call of one model, and the schemas that its answer must conform to."""

    failure: ClassVar[type[Failure]] = Failure
    """How the server words its refusals."""

    model: str
    messages: Sequence[Message]
    tools: Sequence[Tool]
    config: RuntimeConfig
    tool_choice: ToolChoice | None
    stream: bool
    schemas: Mapping[str, ObjectSchema]
    output: OutputSchema | None

    @classmethod
    def check(
        cls,
        model: str,
        capabilities: Capabilities,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        config: RuntimeConfig | None = None,
        response_schema: ResponseSchema | None = None,
        tool_choice: ToolChoice | None = None,
        stream: bool = False,
    ) -> Self:
        """Checks the arguments of `complete()`. Raises ProviderInvalidRequest, ProviderUnsupportedContentBlock."""
        if stream and not capabilities.streaming:
            raise ProviderInvalidRequest("stream: this provider doesn't support streaming", param="stream")
        schemas = check_tools(tools)
        check_tool_choice(tool_choice, schemas)
        check_config(config)
        check_messages(messages, schemas, capabilities)
        output = None if response_schema is None else OutputSchema(response_schema)
        config = config or RuntimeConfig()
        return cls(model, tuple(messages), tuple(tools or ()), config, tool_choice, stream, schemas, output)

    @property
    def images(self) -> bool:
        """Whether a message carries an image."""
        return any(
            isinstance(block, ImageBlock)
            for message in self.messages
            if message.role == "user" and not isinstance(message.content, str)
            for block in message.content
        )

    @abstractmethod
    def path(self) -> str:
        """Where the body goes, below the server's base URL."""

    @abstractmethod
    def fields(self, native: bool) -> dict[str, Any]:
        """The fields of the request body. native: the server constrains output to a schema by itself.

        Raises ProviderInvalidRequest for what the mapping can't express, and for a field of `config.extra` that
        contradicts the call.
        """

    @abstractmethod
    def response(self, raw: Any) -> Response[Any]:
        """The server's JSON body as a Response.

        Raises ProviderInvalidResponse for any other body, StructuredOutputInvalid for content that breaks
        response_schema.
        """

    @abstractmethod
    def reader(self) -> Reader:
        """Adds up the events of a streamed answer."""

    def body(self, native: bool) -> bytes:
        """The request body. Equal calls have equal bytes: keys are sorted (§8), so that prompt caches hit.

        Only response_schema keeps its order, against §8: a model fills it in that order, and a verdict before its
        reasons is another answer. Raises as `fields`, and ProviderInvalidRequest for a value that isn't JSON.
        """
        fields = self.fields(native)
        try:
            return dump_json(_sorted(fields, self.output and self.output.schema.schema)).encode()
        except (ValueError, RecursionError) as error:
            raise ProviderInvalidRequest(f"the call can't be written as JSON: {error}") from error

    def sampling(self, names: Mapping[str, str]) -> dict[str, Any]:
        """The set fields of `config` by their names on the wire. names: ours → the wire's."""
        values = ((wire, getattr(self.config, name)) for name, wire in names.items())
        return {wire: list(value) if isinstance(value, tuple) else value for wire, value in values if value is not None}

    def finish(
        self,
        content: str | Sequence[AnswerBlock],
        calls: tuple[ToolCall, ...],
        finish_reason: FinishReason,
        usage: Usage,
        raw: dict[str, Any],
        parsed: Any = None,
    ) -> Response[Any]:
        """The Response, after the checks that no mapping may skip (§3, §5).

        parsed: the structured value, if it didn't come as text; it is checked, too.
        """
        self._check(calls, finish_reason)
        message = AssistantMessage(content, calls)
        text = message.text
        if self.output is not None and not calls and finish_reason not in ("tool_calls", "error"):
            parsed = self.output.parse(text, finish_reason, usage)
        if not calls and (finish_reason == "tool_calls" or (finish_reason == "stop" and not text)):
            raise ProviderInvalidResponse(f"the answer ended with {finish_reason!r} but is empty", code="empty_answer")
        return Response(message, finish_reason, usage, raw, parsed)

    def _check(self, calls: tuple[ToolCall, ...], finish_reason: FinishReason) -> None:
        if finish_reason == "error":
            return  # a degraded answer goes to the caller as it is
        for index, call in enumerate(calls):
            if reason := self._misfit(call):
                # Its own code lets an agent show the error to the model and ask again.
                message = f"tool call {index} of the answer{reason}"
                raise ProviderInvalidResponse(message, code="invalid_tool_call", details={"index": index})
        if len({call.id for call in calls}) < len(calls):
            raise ProviderInvalidResponse("two tool calls of the answer have the same id")

    def _misfit(self, call: ToolCall) -> str | None:
        """Why a call of the answer is refused; None if it isn't."""
        if not call.id:
            return " has no id"
        if call.arguments is None:
            return f": the arguments of {call.name!r} are not the text of a JSON object"
        if (schema := self.schemas.get(call.name)) is None:
            return f" names {call.name!r}, which is not a tool of this call"
        if reason := schema.violation(call.arguments):
            return f": the arguments of {call.name!r} break the tool's schema: {reason}"
        return None


def _sorted(value: Any, kept: object) -> Any:
    """A copy with the keys of all objects sorted, except in `kept`."""
    if value is kept:
        return value
    if isinstance(value, Mapping):
        return {key: _sorted(value[key], kept) for key in sorted(value, key=str)}
    return [_sorted(one, kept) for one in value] if isinstance(value, list | tuple) else value


def content_of(blocks: Sequence[AnswerBlock]) -> str | tuple[AnswerBlock, ...]:
    """The content of an answer: plain text if the blocks are nothing else (§3.1.1)."""
    if not blocks:
        return ""
    first = blocks[0]
    if len(blocks) == 1 and isinstance(first, TextBlock) and first.signature is None:
        return first.text
    return tuple(blocks)


def count(reported: Any, name: str) -> int | None:
    """A token count as the server reports it; None for one that is missing or malformed (§7)."""
    number = reported.get(name) if isinstance(reported, Mapping) else None
    return number if type(number) is int and number >= 0 else None


def merge_extra(
    fields: dict[str, Any],
    extra: Mapping[str, Any],
    *,
    managed: Mapping[str, Any] | None = None,
    lists: frozenset[str] = frozenset(),
) -> None:
    """Adds `config.extra` to the fields of a body (§6 managed-field collision).

    managed: further fields that the mapping holds to a value without sending it. lists: fields whose values are
    joined, ours first; a malformed list counts as absent. Raises ProviderInvalidRequest for a contradiction.
    """
    own = {**(managed or {}), **fields}
    for name, value in extra.items():
        if name not in own:
            fields[name] = value
        elif name in lists:
            more = value if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value) else ()
            fields[name] = list(dict.fromkeys([*own[name], *more]))
        elif not same(own[name], value):
            raise ProviderInvalidRequest(
                f"config.extra[{name!r}] contradicts the call's own {name}", param=f"config.extra.{name}"
            )


def same(left: Any, right: Any) -> bool:
    """Whether two JSON values are equal: 1 and 1.0 are, 1 and true aren't."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(same(value, right[name]) for name, value in left.items())
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)

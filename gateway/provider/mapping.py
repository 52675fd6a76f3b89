"""The OpenAI-compatible mapping without I/O (OpenArmature §8.1.1, §8.1.2): call → request body, body → Response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.errors import ProviderInvalidRequest, ProviderInvalidResponse
from gateway.provider.messages import (
    AssistantMessage,
    ContentBlock,
    Message,
    TextBlock,
    ToolCall,
    ToolMessage,
    UrlSource,
)
from gateway.provider.request import Capabilities, ResponseSchema, RuntimeConfig, Tool, ToolChoice, ToolChoiceForce
from gateway.provider.response import FinishReason, Response, Usage
from gateway.provider.structured import OutputSchema
from gateway.provider.validation import check_config, check_messages, check_tool_choice, check_tools
from gateway.schema.jsontext import dump_json, parse_json
from gateway.schema.objects import ObjectSchema

_SAMPLING = ("temperature", "max_tokens", "top_p", "seed")
_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


@dataclass(frozen=True, slots=True)
class Call:
    """A checked call of one model, and the schemas that its answer must conform to."""

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
    ) -> Call:
        """Checks the arguments of `complete()`. Raises ProviderInvalidRequest, ProviderUnsupportedContentBlock."""
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
        return any(not isinstance(block, TextBlock) for message in self.messages for block in _blocks(message))

    def body(self, native: bool) -> bytes:
        """The request body (§8.1.1). native: ask for structured output by `response_format`, not by prompt.

        Raises ProviderInvalidRequest for a value that isn't JSON and for a `config.extra` field that contradicts
        the call.
        """
        messages = self.messages
        fields: dict[str, Any] = {"model": self.model, "messages": None}
        if self.tools:
            fields["tools"] = [_tool(tool) for tool in self.tools]
        if self.tool_choice is not None:
            fields["tool_choice"] = _tool_choice(self.tool_choice)
        for name in _SAMPLING:
            if (value := getattr(self.config, name)) is not None:
                fields[name] = value
        if self.output is not None and native:
            fields["response_format"] = self.output.response_format()
        elif self.output is not None:
            messages = self.output.augment(messages, bool(self.tools))
        fields["messages"] = [_message(message) for message in messages]
        if self.stream:
            # Without include_usage a streamed answer has no usage, and would differ from the whole one.
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        self._merge_extra(fields)
        try:
            return dump_json(fields).encode()
        except ValueError as error:
            raise ProviderInvalidRequest(f"the call can't be written as JSON: {error}") from error

    def _merge_extra(self, fields: dict[str, Any]) -> None:
        own = {"stream": False, **fields}
        for name, value in self.config.extra.items():
            if name not in own:
                fields[name] = value
            elif not _same(own[name], value):
                raise ProviderInvalidRequest(
                    f"config.extra[{name!r}] contradicts the call's own {name}",
                    param=f"config.extra.{name}",
                )

    def response(self, raw: Any) -> Response[Any]:
        """The server's JSON body as a Response (§8.1.2).

        Raises ProviderInvalidResponse for any other body, StructuredOutputInvalid for content that breaks
        response_schema.
        """
        choice = _first_choice(raw)
        message = choice.get("message")
        if not isinstance(message, dict):
            raise ProviderInvalidResponse("choices[0].message is missing or not an object")
        finish_reason = _finish_reason(choice.get("finish_reason"))
        content = message.get("content")
        if content is None:
            content = ""
        if not isinstance(content, str):
            raise ProviderInvalidResponse("choices[0].message.content is neither a string nor null")
        if message.get("role", "assistant") != "assistant":
            raise ProviderInvalidResponse(f"choices[0].message.role is {message['role']!r}, not 'assistant'")
        calls = self._tool_calls(message.get("tool_calls"), finish_reason)
        usage = _usage(raw.get("usage"))
        parsed = None
        if self.output is not None and not calls and finish_reason not in ("tool_calls", "error"):
            parsed = self.output.parse(content, finish_reason, usage)
        if not calls and (finish_reason == "tool_calls" or (finish_reason == "stop" and not content)):
            raise ProviderInvalidResponse(f"the answer ended with {finish_reason!r} but is empty", code="empty_answer")
        return Response(AssistantMessage(content, calls), finish_reason, usage, raw, parsed)

    def _tool_calls(self, entries: Any, finish_reason: FinishReason) -> tuple[ToolCall, ...]:
        if entries is None:
            return ()
        degraded = finish_reason == "error"
        if not isinstance(entries, list):
            if degraded:
                return ()
            raise ProviderInvalidResponse("choices[0].message.tool_calls is not an array")
        calls = tuple(_tool_call(entry) for entry in entries)
        if not degraded:
            for index, call in enumerate(calls):
                if reason := self._misfit(call):
                    # Its own code lets an agent show the error to the model and ask again.
                    message = f"choices[0].message.tool_calls[{index}]{reason}"
                    raise ProviderInvalidResponse(message, code="invalid_tool_call", details={"index": index})
            if len({call.id for call in calls}) < len(calls):
                raise ProviderInvalidResponse("two tool calls of the answer have the same id")
        return calls

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


def _blocks(message: Message) -> Sequence[ContentBlock]:
    return () if message.role != "user" or isinstance(message.content, str) else message.content


def _message(message: Message) -> dict[str, Any]:
    if isinstance(message, AssistantMessage) and message.tool_calls:
        calls = [_call_entry(call) for call in message.tool_calls]
        return {"role": "assistant", "content": message.content or None, "tool_calls": calls}
    if isinstance(message, ToolMessage):
        return {"role": "tool", "content": message.content, "tool_call_id": message.tool_call_id}
    if blocks := _blocks(message):
        return {"role": message.role, "content": [_block(block) for block in blocks]}
    return {"role": message.role, "content": message.content}


def _block(block: ContentBlock) -> dict[str, Any]:
    """§8.1.1.1: one entry of OpenAI's content array; inline images become a data: URI (RFC 2397)."""
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    source = block.source
    url = source.url if isinstance(source, UrlSource) else f"data:{block.media_type};base64,{source.base64_data}"
    return {
        "type": "image_url",
        "image_url": {"url": url} if block.detail is None else {"url": url, "detail": block.detail},
    }


def _call_entry(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = dump_json(call.arguments)
    except ValueError as error:
        raise ProviderInvalidRequest(f"the arguments of tool call {call.id!r} are not JSON: {error}") from error
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _tool_choice(choice: ToolChoice) -> Any:
    return {"type": "function", "function": {"name": choice.name}} if isinstance(choice, ToolChoiceForce) else choice


def _first_choice(raw: Any) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise ProviderInvalidResponse("the answer is not a JSON object")
    choices = raw.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise ProviderInvalidResponse("the answer has no choices[0]")
    return choices[0]


def _finish_reason(value: Any) -> FinishReason:
    if not isinstance(value, str):
        raise ProviderInvalidResponse("choices[0].finish_reason is missing")
    return _FINISH_REASONS.get(value, "error")


def _usage(value: Any) -> Usage:
    reported = value if isinstance(value, dict) else {}

    def count(name: str) -> int | None:
        number = reported.get(name)
        return number if type(number) is int and number >= 0 else None

    return Usage(count("prompt_tokens"), count("completion_tokens"), count("total_tokens"))


def _tool_call(entry: Any) -> ToolCall:
    """Reads an entry as far as it can: '' for a missing id or name, None for arguments that aren't a JSON object."""
    entry = entry if isinstance(entry, dict) else {}
    function = entry["function"] if isinstance(entry.get("function"), dict) else {}
    text = function.get("arguments")
    try:
        arguments = parse_json(text) if isinstance(text, str) else None
    except ValueError:
        arguments = None
    id_, name = (value if isinstance(value, str) else "" for value in (entry.get("id"), function.get("name")))
    return ToolCall(id_, name, arguments if isinstance(arguments, dict) else None)


def _same(left: Any, right: Any) -> bool:
    """Whether two JSON values are equal: 1 and 1.0 are, 1 and true aren't."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(_same(value, right[name]) for name, value in left.items())
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)

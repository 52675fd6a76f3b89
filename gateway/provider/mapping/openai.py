"""OpenAI's chat completions (OpenArmature §8.1)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.errors import ProviderInvalidRequest, ProviderInvalidResponse, ProviderUnavailable
from gateway.provider.deltas import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from gateway.provider.mapping.call import Call, Reader, content_of, count, merge_extra
from gateway.provider.messages import (
    AnswerBlock,
    AssistantMessage,
    ContentBlock,
    ImageBlock,
    InlineSource,
    Message,
    SystemMessage,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolMessage,
    UrlSource,
    UserMessage,
)
from gateway.provider.request import Tool, ToolChoice, ToolChoiceForce
from gateway.provider.response import FinishReason, Response, Usage
from gateway.schema.jsontext import dump_json, parse_json
from gateway.wire.fold import Fold, parts

_SAMPLING = {
    "temperature": "temperature",
    "max_tokens": "max_tokens",
    "top_p": "top_p",
    "seed": "seed",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "stop_sequences": "stop",
}
_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}
_REASONING = ("reasoning_content", "reasoning")
"""Servers write the reasoning under one of these names, some under both."""

_DATA_URI = re.compile(r"data:(?P<type>[^;,]+);base64,(?P<data>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class OpenAICall(Call):
    """One call of `POST /chat/completions`."""

    def path(self) -> str:
        return "/chat/completions"

    def fields(self, native: bool) -> dict[str, Any]:
        """See `Call.fields`. Reasoning and signatures stay here: these servers don't take them back (§8.1.1)."""
        messages = self.messages
        fields: dict[str, Any] = {"model": self.model, **self.sampling(_SAMPLING)}
        if self.tools:
            fields["tools"] = write_tools(self.tools)
        if self.tool_choice is not None:
            fields["tool_choice"] = _tool_choice(self.tool_choice)
        if self.output is not None and native:
            fields["response_format"] = self.output.response_format()
        elif self.output is not None:
            messages = self.output.augment(messages, bool(self.tools))
        fields |= write_messages(messages)
        if self.stream:
            # Without include_usage a streamed answer has no usage, and would differ from the whole one.
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        extra = self.config.extra
        if "stop" in fields and isinstance(extra.get("stop"), str):
            extra = {**extra, "stop": [extra["stop"]]}  # OpenAI takes one text, too
        merge_extra(fields, extra, managed={"stream": self.stream}, lists=frozenset({"stop"}))
        return fields

    def response(self, raw: Any) -> Response[Any]:
        """See `Call.response` (§8.1.2)."""
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
        calls = _tool_calls(message.get("tool_calls"), finish_reason)
        return self.finish(_content(message, content), calls, finish_reason, _usage(raw.get("usage")), raw)

    def reader(self) -> Reader:
        return _Reader(self)


class _Reader:
    """See `Reader`: a stream of `chat.completion.chunk` up to `[DONE]` (§8.1.6)."""

    def __init__(self, call: OpenAICall) -> None:
        self.done = False
        self._call = call
        self._fold = Fold()
        self._begun = False

    def feed(self, events: list[bytes]) -> Iterator[Delta]:
        for data in events:
            if data == b"[DONE]":
                self.done = True
                return
            try:
                chunk = parse_json(data)
            except ValueError as error:
                raise ProviderInvalidResponse(f"an event of the stream is not JSON: {error}") from error
            if isinstance(chunk, dict) and chunk.get("error"):
                raise self._call.failure.frame(chunk["error"]).error(self._call.images)
            self._fold.add_fields(chunk)
            self._begun = True
            for part in parts(chunk):
                if part.get("index", 0) == 0:  # the contract knows one choice
                    yield from _deltas(part.get("delta") or {}, self._fold.add_choice(part))

    def body(self) -> dict[str, Any]:
        if not self._begun:
            raise ProviderInvalidResponse("the stream has no chunk of an answer")
        choice = self._fold.choices.get(0)
        if not self.done and (choice is None or choice.finish_reason is None):
            raise ProviderUnavailable("the stream broke off before the answer was complete")
        return self._fold.body()


def write_messages(messages: Sequence[Message]) -> dict[str, Any]:
    """The conversation as OpenAI's `messages` (§8.1.1), without messages of nothing but reasoning."""
    return {"messages": [_message(message) for message in messages if _speaks(message)]}


def write_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The tools as OpenAI's `tools` (§8.1.1)."""
    return [_tool(tool) for tool in tools]


def _speaks(message: Message) -> bool:
    return not isinstance(message, AssistantMessage) or bool(message.text or message.tool_calls)


def read_messages(fields: Mapping[str, Any]) -> list[Message]:
    """The conversation of a body that `write_messages` or another client wrote."""
    return [_read_message(entry) for entry in fields["messages"]]


def _read_message(entry: Mapping[str, Any]) -> Message:
    content = entry.get("content")
    match entry["role"]:
        case "system" | "developer":
            return SystemMessage(_text(content))
        case "tool":
            return ToolMessage(_text(content), entry["tool_call_id"])
        case "assistant":
            return AssistantMessage(_content(entry, _text(content)), _tool_calls(entry.get("tool_calls"), "error"))
        case "user" if isinstance(content, list):
            return UserMessage(tuple(map(_read_block, content)))
        case "user":
            return UserMessage(_text(content))
    raise ProviderInvalidRequest(f"a message with the role {entry['role']!r} has no counterpart")


def _text(content: Any) -> str:
    """A content that may only be text: whole, in parts, or null."""
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return content or ""


def _read_block(part: Mapping[str, Any]) -> ContentBlock:
    match part:
        case {"type": "text", "text": str(text)}:
            return TextBlock(text)
        case {"type": "image_url", "image_url": {"url": str(url)} as image}:
            if inline := _DATA_URI.fullmatch(url):
                return ImageBlock(InlineSource(inline["data"]), inline["type"], image.get("detail"))
            return ImageBlock(UrlSource(url), None, image.get("detail"))
    raise ProviderInvalidRequest(f"a part of type {part.get('type')!r} has no counterpart")


def _message(message: Message) -> dict[str, Any]:
    if isinstance(message, AssistantMessage):
        if not message.tool_calls:
            return {"role": "assistant", "content": message.text}
        calls = [_call_entry(call) for call in message.tool_calls]
        return {"role": "assistant", "content": message.text or None, "tool_calls": calls}
    if isinstance(message, ToolMessage):
        return {"role": "tool", "content": message.content, "tool_call_id": message.tool_call_id}
    if isinstance(message, UserMessage) and not isinstance(message.content, str):
        return {"role": message.role, "content": [_block(block) for block in message.content]}
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
        arguments = dump_json(call.arguments, sort_keys=True)
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


def _content(message: Mapping[str, Any], content: str) -> str | tuple[AnswerBlock, ...]:
    """The content, the reasoning before it if the server shows it (§8.1.6)."""
    reasoning = next((text for name in _REASONING if isinstance(text := message.get(name), str) and text), None)
    blocks: list[AnswerBlock] = [] if reasoning is None else [ThinkingBlock(reasoning)]
    if content:
        blocks.append(TextBlock(content))
    return content_of(blocks)


def _usage(value: Any) -> Usage:
    details = value.get("prompt_tokens_details") if isinstance(value, dict) else None
    return Usage(
        count(value, "prompt_tokens"),
        count(value, "completion_tokens"),
        count(value, "total_tokens"),
        count(details, "cached_tokens"),
    )


def _tool_calls(entries: Any, finish_reason: FinishReason) -> tuple[ToolCall, ...]:
    if isinstance(entries, list):
        return tuple(_tool_call(entry) for entry in entries)
    if entries is None or finish_reason == "error":
        return ()
    raise ProviderInvalidResponse("choices[0].message.tool_calls is not an array")


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


def _deltas(delta: Mapping[str, Any], numbers: list[int]) -> Iterator[Delta]:
    """numbers: of the calls that the delta's tool call fragments belong to."""
    reasoning: str | None = None
    for name, value in delta.items():
        if name == "tool_calls":
            yield from map(_call_delta, value or (), numbers)
        elif name == "content" and isinstance(value, str) and value:
            yield TextDelta(value)
        elif name in _REASONING and isinstance(value, str) and value and value != reasoning:
            reasoning = value
            yield ReasoningDelta(value)


def _call_delta(fragment: Mapping[str, Any], number: int) -> ToolCallDelta:
    function = fragment.get("function") or {}
    id_, name = (value if isinstance(value, str) else None for value in (fragment.get("id"), function.get("name")))
    return ToolCallDelta(number, id_, name, function.get("arguments") or "")

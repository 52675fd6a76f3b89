"""Anthropic's Messages API (OpenArmature §8.2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gateway.errors import (
    GatewayError,
    ProviderAuthentication,
    ProviderInvalidModel,
    ProviderInvalidRequest,
    ProviderInvalidResponse,
    ProviderUnavailable,
)
from gateway.provider.deltas import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from gateway.provider.failures import Failure
from gateway.provider.mapping.call import Call, Reader, content_of, count, merge_extra
from gateway.provider.messages import (
    AnswerBlock,
    AssistantMessage,
    ContentBlock,
    ImageBlock,
    InlineSource,
    Message,
    RedactedThinkingBlock,
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
from gateway.wire.anthropic import ERROR_TYPES, STOP_REASONS

_SAMPLING = {
    "temperature": "temperature",
    "max_tokens": "max_tokens",
    "top_p": "top_p",
    "stop_sequences": "stop_sequences",
}
_UNSUPPORTED = ("seed", "frequency_penalty", "presence_penalty")
_TOOL_CHOICES = {"auto": "auto", "required": "any", "none": "none"}
# The gateway's own table, read backwards. `pause_turn` ends a turn that the caller may continue.
FINISH_REASONS: dict[str, Any] = {"end_turn": "stop", "stop_sequence": "stop", "pause_turn": "stop"} | {
    theirs: ours for ours, theirs in STOP_REASONS.items()
}
_OUTPUT_TOOL = "answer"


class AnthropicFailure(Failure):
    """Adds what only Anthropic answers: 402 for accounts, and a model's bare name for an unknown one (§8.2.3)."""

    @staticmethod
    def status_of(kind: object) -> int:
        return next((status for status, theirs in ERROR_TYPES.items() if theirs == kind), 500)

    def kind(self, images: bool) -> type[GatewayError]:
        if self.status == 402:
            return ProviderAuthentication
        if self.status == 404 and self.message.startswith("model:"):
            return ProviderInvalidModel
        return super().kind(images)


@dataclass(frozen=True, slots=True)
class AnthropicCall(Call):
    """One call of `POST /messages`."""

    failure: ClassVar[type[Failure]] = AnthropicFailure

    def path(self) -> str:
        return "/messages"

    def fields(self, native: bool) -> dict[str, Any]:
        """See `Call.fields` (§8.2.1). Refuses a call without `max_tokens`, and sampling that Anthropic lacks."""
        if self.config.max_tokens is None:
            raise ProviderInvalidRequest("config.max_tokens: Anthropic's API requires it", param="config.max_tokens")
        for name in _UNSUPPORTED:
            if getattr(self.config, name) is not None:
                raise ProviderInvalidRequest(f"config.{name}: Anthropic's API has no {name}", param=f"config.{name}")
        messages = self.messages
        fields: dict[str, Any] = {"model": self.model, **self.sampling(_SAMPLING)}
        if self.tools:
            fields["tools"] = [_tool(tool) for tool in self.tools]
        if self.tool_choice is not None:
            fields["tool_choice"] = _tool_choice(self.tool_choice)
        if self.output is not None and native:
            fields["output_config"] = {"format": {"type": "json_schema", "schema": self.output.schema.schema}}
        elif self.output is not None and self.by_tool(native):
            schema = self.output.schema.schema
            fields["tools"] = [{"name": _OUTPUT_TOOL, "description": "Gives the answer.", "input_schema": schema}]
            fields["tool_choice"] = {"type": "tool", "name": _OUTPUT_TOOL}
        elif self.output is not None:
            messages = self.output.augment(messages, bool(self.tools))
        fields |= write_messages(messages)
        if self.stream:
            fields["stream"] = True
        managed = {"stream": self.stream}
        merge_extra(fields, self.config.extra, managed=managed, lists=frozenset({"stop_sequences"}))
        return fields

    def by_tool(self, native: bool) -> bool:
        """Whether a tool of ours carries the structured output: for models that lack it, if the call has no tools
        (§8.2.5.1)."""
        return self.output is not None and not native and not self.tools

    def response(self, raw: Any) -> Response[Any]:
        """See `Call.response` (§8.2.2)."""
        if not isinstance(raw, dict) or not isinstance(raw.get("content"), list):
            raise ProviderInvalidResponse("the answer has no content array")
        if raw.get("role", "assistant") != "assistant":
            raise ProviderInvalidResponse(f"role is {raw['role']!r}, not 'assistant'")
        if not isinstance(raw.get("stop_reason"), str):
            raise ProviderInvalidResponse("stop_reason is missing")
        finish_reason: FinishReason = FINISH_REASONS.get(raw["stop_reason"], "error")
        message = read_answer(raw["content"])
        content, calls = message.content, tuple(message.tool_calls)
        if self.output is not None and not self.tools and calls and calls[0].name == _OUTPUT_TOOL:
            # The tool of ours: its input is the content.
            content, calls = dump_json(calls[0].arguments), ()
            finish_reason = "stop" if finish_reason == "tool_calls" else finish_reason
        return self.finish(content, calls, finish_reason, _usage(raw.get("usage")), raw)

    def reader(self) -> Reader:
        return _Reader(self)


class _Reader:
    """See `Reader`: Anthropic's events, from `message_start` to `message_stop`."""

    def __init__(self, call: AnthropicCall) -> None:
        self.done = False
        self._call = call
        self._message: dict[str, Any] | None = None
        self._blocks: list[dict[str, Any]] = []
        self._texts: list[list[str]] = []
        """The pieces of each block's text, or of its input's JSON."""
        self._calls = -1
        """Number of the last tool call."""

    def feed(self, events: list[bytes]) -> Iterator[Delta]:
        for data in events:
            try:
                event = parse_json(data)
            except ValueError as error:
                raise ProviderInvalidResponse(f"an event of the stream is not JSON: {error}") from error
            if not isinstance(event, dict):
                raise ProviderInvalidResponse("an event of the stream is not an object")
            kind = event.get("type")
            if kind == "error":
                raise self._call.failure.frame(event.get("error")).error(self._call.images)
            if kind == "message_stop":
                self.done = True
                return
            yield from self._event(kind, event)

    def _event(self, kind: Any, event: dict[str, Any]) -> Iterator[Delta]:
        if kind == "message_start":
            self._message = _object(event.get("message"), "message_start without a message")
        elif kind == "content_block_start":
            yield from self._start(_object(event.get("content_block"), "content_block_start without a block"))
        elif kind == "content_block_delta":
            if not self._blocks:
                raise ProviderInvalidResponse("content_block_delta before content_block_start")
            yield from self._delta(_object(event.get("delta"), "content_block_delta without a delta"))
        elif kind == "message_delta":
            message = _object(self._message, "message_delta before message_start")
            message.update(_object(event.get("delta") or {}, "message_delta without a delta"))
            counted = (_object(each.get("usage") or {}, "usage is not an object") for each in (message, event))
            message["usage"] = {name: number for usage in counted for name, number in usage.items()}

    def _start(self, block: dict[str, Any]) -> Iterator[Delta]:
        self._blocks.append(block)
        self._texts.append([])
        if block.get("type") == "tool_use":
            self._calls += 1
            yield ToolCallDelta(self._calls, block.get("id"), block.get("name"), "")
        for name, delta in (("text", TextDelta), ("thinking", ReasoningDelta)):
            if isinstance(text := block.get(name), str) and text:
                self._texts[-1].append(text)
                yield delta(text)

    def _delta(self, delta: dict[str, Any]) -> Iterator[Delta]:
        block, texts = self._blocks[-1], self._texts[-1]
        kind = delta.get("type")
        if kind == "text_delta" and isinstance(text := delta.get("text"), str):
            texts.append(text)
            yield TextDelta(text)
        elif kind == "thinking_delta" and isinstance(text := delta.get("thinking"), str):
            texts.append(text)
            yield ReasoningDelta(text)
        elif kind == "input_json_delta" and isinstance(text := delta.get("partial_json"), str):
            texts.append(text)
            yield ToolCallDelta(self._calls, None, None, text)
        elif kind == "signature_delta":
            block["signature"] = delta.get("signature")

    def body(self) -> dict[str, Any]:
        if self._message is None:
            raise ProviderInvalidResponse("the stream has no message")
        if not self.done and not isinstance(self._message.get("stop_reason"), str):
            raise ProviderUnavailable("the stream broke off before the answer was complete")
        blocks = [_whole(block, "".join(texts)) for block, texts in zip(self._blocks, self._texts, strict=True)]
        return {**self._message, "content": blocks}


def _whole(block: dict[str, Any], text: str) -> dict[str, Any]:
    """A streamed block with its text, or its input."""
    kind = block.get("type")
    if kind in ("text", "thinking"):
        return {**block, kind: text}
    if not text:
        return block
    try:
        return {**block, "input": parse_json(text)}
    except ValueError:
        return {**block, "input": text}  # refused as arguments that aren't an object


def write_messages(messages: Sequence[Message]) -> dict[str, Any]:
    """The conversation as Anthropic's `messages` and `system` (§8.2.1).

    Leaves out what another server's model wrote and Anthropic can't verify: reasoning without a signature.
    """
    system = [message.content for message in messages if isinstance(message, SystemMessage)]
    entries: list[dict[str, Any]] = []
    for message in messages:
        match message:
            case UserMessage():
                entries.append({"role": "user", "content": _user_content(message.content)})
            case AssistantMessage():
                if content := _answer_content(message):
                    entries.append({"role": "assistant", "content": content})
            case ToolMessage():
                result = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": message.content}
                if entries and _only_results(entries[-1]):
                    entries[-1]["content"].append(result)
                else:
                    entries.append({"role": "user", "content": [result]})
    return ({"system": "\n\n".join(system)} if system else {}) | {"messages": entries}


def _only_results(entry: dict[str, Any]) -> bool:
    content = entry["content"]
    return isinstance(content, list) and all(block["type"] == "tool_result" for block in content)


def _user_content(content: str | Sequence[ContentBlock]) -> str | list[dict[str, Any]]:
    return content if isinstance(content, str) else [_block(block) for block in content]


def _block(block: ContentBlock) -> dict[str, Any]:
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    source = block.source
    if isinstance(source, UrlSource):
        return {"type": "image", "source": {"type": "url", "url": source.url}}
    inline = {"type": "base64", "media_type": block.media_type, "data": source.base64_data}
    return {"type": "image", "source": inline}


def _answer_content(message: AssistantMessage) -> str | list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for block in message.blocks:
        match block:
            case TextBlock():
                blocks.append({"type": "text", "text": block.text})
            case ThinkingBlock(signature=str()):
                blocks.append({"type": "thinking", "thinking": block.text, "signature": block.signature})
            case RedactedThinkingBlock():
                blocks.append({"type": "redacted_thinking", "data": block.data})
    for call in message.tool_calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments})
    return blocks[0]["text"] if len(blocks) == 1 and blocks[0]["type"] == "text" else blocks


def read_answer(content: Sequence[Any]) -> AssistantMessage:
    """The content array of an answer as a message. Other servers' blocks, such as those of Anthropic's own tools, stay
    in `Response.raw`."""
    blocks: list[AnswerBlock] = []
    calls: list[ToolCall] = []
    for entry in content:
        match entry:
            case {"type": "text", "text": str(text)} if text:
                blocks.append(TextBlock(text))
            case {"type": "thinking", "thinking": str(text)}:
                signature = entry.get("signature")
                signature = signature if isinstance(signature, str) and signature else None
                if text or signature:  # the server may keep the text to itself
                    blocks.append(ThinkingBlock(text, signature))
            case {"type": "redacted_thinking", "data": str(data)} if data:
                blocks.append(RedactedThinkingBlock(data))
            case {"type": "tool_use"}:
                id_, name = (v if isinstance(v := entry.get(key), str) else "" for key in ("id", "name"))
                arguments = entry.get("input")
                calls.append(ToolCall(id_, name, arguments if isinstance(arguments, dict) else None))
            case _ if not isinstance(entry, dict):
                raise ProviderInvalidResponse("a block of the content is not an object")
    return AssistantMessage(content_of(blocks), tuple(calls))


def read_messages(fields: Mapping[str, Any]) -> list[Message]:
    """The conversation of a body that `write_messages` or another client wrote. A user message that mixes tool results
    with other blocks becomes several messages, in order (§8.2.1.2)."""
    messages: list[Message] = []
    if system := fields.get("system"):
        parts = [system] if isinstance(system, str) else [block["text"] for block in system]
        messages.append(SystemMessage("\n\n".join(parts)))
    for entry in fields["messages"]:
        content = entry["content"]
        if entry["role"] == "assistant":
            messages.append(AssistantMessage(content) if isinstance(content, str) else read_answer(content))
        elif isinstance(content, str):
            messages.append(UserMessage(content))
        else:
            messages += _read_user(content)
    return messages


def _read_user(content: Sequence[Mapping[str, Any]]) -> Iterator[Message]:
    run: list[ContentBlock] = []
    for block in content:
        if block["type"] != "tool_result":
            run.append(_read_block(block))
            continue
        if run:
            yield UserMessage(tuple(run))
            run = []
        result = block.get("content") or ""
        text = result if isinstance(result, str) else "".join(part.get("text", "") for part in result)
        yield ToolMessage(text, block["tool_use_id"])
    if run:
        yield UserMessage(tuple(run))


def _read_block(block: Mapping[str, Any]) -> ContentBlock:
    match block:
        case {"type": "text", "text": str(text)}:
            return TextBlock(text)
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            return ImageBlock(UrlSource(url))
        case {"type": "image", "source": {"type": "base64", "media_type": str(kind), "data": str(data)}}:
            return ImageBlock(InlineSource(data), kind)
    raise ProviderInvalidRequest(f"a block of type {block.get('type')!r} has no counterpart")


def _tool(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}


def _tool_choice(choice: ToolChoice) -> dict[str, Any]:
    if isinstance(choice, ToolChoiceForce):
        return {"type": "tool", "name": choice.name}
    return {"type": _TOOL_CHOICES[choice]}


def _usage(value: Any) -> Usage:
    """Anthropic sends no total. Its cache counts are of explicit caching and stay in `Response.raw` (§8.2.2)."""
    prompt, completion = count(value, "input_tokens"), count(value, "output_tokens")
    return Usage(prompt, completion, None if prompt is None or completion is None else prompt + completion)


def _object(value: Any, otherwise: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ProviderInvalidResponse(f"the stream has {otherwise}")
    return value

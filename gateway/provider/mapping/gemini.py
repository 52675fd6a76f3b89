"""Google's Gemini API: `generateContent` (OpenArmature §8.3)."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit
from uuid import uuid4

from gateway.errors import (
    GatewayError,
    ProviderAuthentication,
    ProviderInvalidModel,
    ProviderInvalidRequest,
    ProviderInvalidResponse,
    ProviderUnavailable,
    ProviderUnsupportedContentBlock,
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
    SystemMessage,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolMessage,
    UrlSource,
    UserMessage,
)
from gateway.provider.request import ToolChoice, ToolChoiceForce
from gateway.provider.response import FinishReason, Response, Usage
from gateway.schema.jsontext import dump_json, parse_json

_SAMPLING = {
    "temperature": "temperature",
    "top_p": "topP",
    "max_tokens": "maxOutputTokens",
    "stop_sequences": "stopSequences",
    "seed": "seed",
    "frequency_penalty": "frequencyPenalty",
    "presence_penalty": "presencePenalty",
}
_MODES = {"auto": "AUTO", "required": "ANY", "none": "NONE"}
FINISH_REASONS: dict[str, FinishReason] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "BLOCKLIST": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter",
}
_AT_ROOT = ("cachedContent", "safetySettings", "toolConfig")
"""The fields of `config.extra` that aren't generation parameters; all others go below `generationConfig`."""


class GeminiFailure(Failure):
    """Adds what only Google answers: 400 for a bad key, 403 for a kind of file (§8.3.3)."""

    def kind(self, images: bool) -> type[GatewayError]:
        if self.status == 400 and "API key not valid" in self.message:
            return ProviderAuthentication
        if self.status == 403 and images and self.refuses_image():
            return ProviderUnsupportedContentBlock
        if self.status == 404 and self.message.startswith(("models/", "Model ")):
            return ProviderInvalidModel
        return super().kind(images)


@dataclass(frozen=True, slots=True)
class GeminiCall(Call):
    """One call of `POST /models/{model}:generateContent`."""

    failure: ClassVar[type[Failure]] = GeminiFailure

    def path(self) -> str:
        method = "streamGenerateContent?alt=sse" if self.stream else "generateContent"
        return f"/models/{quote(self.model, safe='')}:{method}"

    def fields(self, native: bool) -> dict[str, Any]:
        """See `Call.fields` (§8.3.1)."""
        messages = self.messages
        generation = self.sampling(_SAMPLING)
        fields: dict[str, Any] = {}
        if self.tools:
            declared = [{"name": t.name, "description": t.description, "parameters": t.parameters} for t in self.tools]
            fields["tools"] = [{"functionDeclarations": declared}]
        if self.tool_choice is not None:
            fields["toolConfig"] = {"functionCallingConfig": _calling(self.tool_choice)}
        if self.output is not None and native:
            generation |= {"responseMimeType": "application/json", "responseJsonSchema": self.output.schema.schema}
        elif self.output is not None:
            messages = self.output.augment(messages, bool(self.tools))
        fields |= write_messages(messages)
        extra = self.config.extra
        merge_extra(fields, {name: extra[name] for name in _AT_ROOT if name in extra})
        merge_extra(
            generation,
            {name: value for name, value in extra.items() if name not in _AT_ROOT},
            lists=frozenset({"stopSequences"}),
        )
        if generation:
            fields["generationConfig"] = generation
        return fields

    def response(self, raw: Any) -> Response[Any]:
        """See `Call.response` (§8.3.2). A prompt that Google blocks has no candidate: `content_filter`."""
        if not isinstance(raw, dict):
            raise ProviderInvalidResponse("the answer is not a JSON object")
        usage = _usage(raw.get("usageMetadata"))
        candidates = raw.get("candidates")
        if not candidates and isinstance(raw.get("promptFeedback"), dict) and "blockReason" in raw["promptFeedback"]:
            return self.finish("", (), "content_filter", usage, raw)
        if not isinstance(candidates, list) or not candidates or not isinstance(candidates[0], dict):
            raise ProviderInvalidResponse("the answer has no candidates[0]")
        reason = candidates[0].get("finishReason")
        if not isinstance(reason, str):
            raise ProviderInvalidResponse("candidates[0].finishReason is missing")
        content = candidates[0].get("content") or {}
        message = read_answer(_parts(content))
        finish_reason = FINISH_REASONS.get(reason, "error")
        if message.tool_calls:  # Gemini has no finish reason for them
            finish_reason = "tool_calls"
        return self.finish(message.content, tuple(message.tool_calls), finish_reason, usage, raw)

    def reader(self) -> Reader:
        return _Reader(self)


def _parts(content: Any) -> list[Any]:
    parts = content.get("parts") or [] if isinstance(content, dict) else None
    if not isinstance(parts, list):
        raise ProviderInvalidResponse("candidates[0].content.parts is not an array")
    return parts


class _Reader:
    """See `Reader`: each event is a body of its own; the stream has no end mark."""

    def __init__(self, call: GeminiCall) -> None:
        self.done = False
        self._call = call
        self._body: dict[str, Any] = {}
        self._candidate: dict[str, Any] = {}
        self._parts: list[dict[str, Any]] = []
        self._calls = 0

    def feed(self, events: list[bytes]) -> Iterator[Delta]:
        for data in events:
            try:
                chunk = parse_json(data)
            except ValueError as error:
                raise ProviderInvalidResponse(f"an event of the stream is not JSON: {error}") from error
            if not isinstance(chunk, dict):
                raise ProviderInvalidResponse("an event of the stream is not an object")
            if chunk.get("error"):
                raise self._call.failure.frame(chunk["error"]).error(self._call.images)
            self._body |= {name: value for name, value in chunk.items() if name != "candidates"}
            candidates = chunk.get("candidates")
            if not isinstance(candidates, list) or not candidates or not isinstance(candidates[0], dict):
                continue
            self._candidate |= {name: value for name, value in candidates[0].items() if name != "content"}
            content = candidates[0].get("content")
            for part in _parts(content) if isinstance(content, dict) else []:
                yield from self._part(part)

    def _part(self, part: Any) -> Iterator[Delta]:
        if not isinstance(part, dict):
            raise ProviderInvalidResponse("a part of the stream is not an object")
        self._parts.append(part)
        if isinstance(call := part.get("functionCall"), dict):
            arguments = dump_json(call.get("args") or {})
            yield ToolCallDelta(self._calls, call.get("id"), call.get("name"), arguments)
            self._calls += 1
        elif isinstance(text := part.get("text"), str) and text:
            yield ReasoningDelta(text) if part.get("thought") else TextDelta(text)

    def body(self) -> dict[str, Any]:
        if not self._body and not self._candidate:
            raise ProviderInvalidResponse("the stream has no chunk of an answer")
        if not self._candidate:
            return self._body
        if "finishReason" not in self._candidate:
            raise ProviderUnavailable("the stream broke off before the answer was complete")
        content = {"role": "model", "parts": _joined(self._parts)}
        return {**self._body, "candidates": [{**self._candidate, "content": content}]}


def _joined(parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbouring pieces of one text as one part. A signature ends its part, and may come in an empty one."""
    runs: list[tuple[dict[str, Any], list[str]]] = []
    for part in parts:
        text = part.get("text")
        if isinstance(text, str) and runs:
            last, texts = runs[-1]
            alike = texts and bool(last.get("thought")) == bool(part.get("thought"))
            if alike and "thoughtSignature" not in last:
                texts.append(text)
                last.update(part)
                continue
        runs.append((dict(part), [text] if isinstance(text, str) else []))
    return [{**part, "text": "".join(texts)} if texts else part for part, texts in runs]


def write_messages(messages: Sequence[Message]) -> dict[str, Any]:
    """The conversation as Gemini's `contents` and `systemInstruction` (§8.3.1).

    Leaves out reasoning that another server signed or encrypted.
    """
    system = [message.content for message in messages if isinstance(message, SystemMessage)]
    contents: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for message in messages:
        match message:
            case UserMessage(content=str(text)):
                contents.append({"role": "user", "parts": [{"text": text}]})
            case UserMessage():
                contents.append({"role": "user", "parts": [_part(block) for block in message.content]})  # type: ignore[arg-type]
            case AssistantMessage():
                names |= {call.id: call.name for call in message.tool_calls}
                if parts := _answer_parts(message):
                    contents.append({"role": "model", "parts": parts})
            case ToolMessage():
                id_ = message.tool_call_id
                answered = {"name": names.get(id_, ""), "id": id_, "response": {"result": message.content}}
                if contents and all("functionResponse" in part for part in contents[-1]["parts"]):
                    contents[-1]["parts"].append({"functionResponse": answered})
                else:
                    contents.append({"role": "user", "parts": [{"functionResponse": answered}]})
    instruction = {"systemInstruction": {"parts": [{"text": "\n\n".join(system)}]}} if system else {}
    return instruction | {"contents": contents}


def _part(block: ContentBlock) -> dict[str, Any]:
    """§8.3.1.1. Gemini takes no detail hint."""
    if isinstance(block, TextBlock):
        return {"text": block.text}
    source = block.source
    if isinstance(source, InlineSource):
        return {"inlineData": {"mimeType": block.media_type, "data": source.base64_data}}
    kind = _kind(source.url) or block.media_type
    return {"fileData": {**({"mimeType": kind} if kind else {}), "fileUri": source.url}}


def _kind(url: str) -> str | None:
    """The media type by the name of the file; the server tells what is wrong with a URL."""
    try:
        return mimetypes.guess_type(urlsplit(url).path)[0]
    except ValueError:
        return None


def _answer_parts(message: AssistantMessage) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for block in message.blocks:
        match block:
            case TextBlock():
                parts.append({"text": block.text, **_signature(block.signature)})
            case ThinkingBlock(signature=None):
                parts.append({"text": block.text, "thought": True})
    for call in message.tool_calls:
        called = {"name": call.name, "id": call.id, "args": call.arguments}
        parts.append({"functionCall": called, **_signature(call.signature)})
    return parts


def _signature(signature: str | None) -> dict[str, str]:
    return {"thoughtSignature": signature} if signature else {}


def read_answer(parts: Sequence[Any]) -> AssistantMessage:
    """The parts of an answer as a message. Older models give calls no id: those get one."""
    blocks: list[AnswerBlock] = []
    calls: list[ToolCall] = []
    for part in parts:
        if not isinstance(part, dict):
            raise ProviderInvalidResponse("a part of the answer is not an object")
        signature = part.get("thoughtSignature")
        signature = signature if isinstance(signature, str) and signature else None
        match part:
            case {"functionCall": dict(call)}:
                id_, name = (value if isinstance(value := call.get(key), str) else "" for key in ("id", "name"))
                arguments = call.get("args", {})
                arguments = arguments if isinstance(arguments, dict) else None
                calls.append(ToolCall(id_ or f"call_{uuid4().hex}", name, arguments, signature))
            case {"text": str(text), "thought": True} if text:
                blocks.append(ThinkingBlock(text))
            case {"text": str(text)} if text:
                blocks.append(TextBlock(text, signature))
            case {"text": ""} if signature and blocks and isinstance(last := blocks[-1], TextBlock):
                blocks[-1] = TextBlock(last.text, signature)  # a stream may sign its text in a part of its own
    return AssistantMessage(content_of(blocks), tuple(calls))


def read_messages(fields: Mapping[str, Any]) -> list[Message]:
    """The conversation of a body that `write_messages` or another client wrote (§8.3.1.2)."""
    messages: list[Message] = []
    if instruction := fields.get("systemInstruction"):
        messages.append(SystemMessage("\n\n".join(part["text"] for part in instruction["parts"])))
    for content in fields["contents"]:
        if content["role"] == "model":
            messages.append(read_answer(content["parts"]))
        else:
            messages += _read_user(content["parts"])
    return messages


def _read_user(parts: Sequence[Mapping[str, Any]]) -> Iterator[Message]:
    run: list[ContentBlock] = []
    for part in parts:
        if answered := part.get("functionResponse"):
            if run:
                yield _user(run)
                run = []
            response = answered.get("response") or {}
            whole = isinstance(response, Mapping) and response.keys() == {"result"}
            text = response["result"] if whole and isinstance(response["result"], str) else dump_json(response)
            yield ToolMessage(text, answered.get("id") or "")
        else:
            run.append(_read_part(part))
    if run:
        yield _user(run)


def _user(blocks: Sequence[ContentBlock]) -> UserMessage:
    """Gemini writes a text and one text block alike; they mean the same (§3.1.1)."""
    first = blocks[0]
    return UserMessage(first.text if len(blocks) == 1 and isinstance(first, TextBlock) else tuple(blocks))


def _read_part(part: Mapping[str, Any]) -> ContentBlock:
    match part:
        case {"text": str(text)}:
            return TextBlock(text)
        case {"inlineData": {"mimeType": str(kind), "data": str(data)}}:
            return ImageBlock(InlineSource(data), kind)
        case {"fileData": {"fileUri": str(url), **file}}:
            stated = file.get("mimeType")
            return ImageBlock(UrlSource(url), stated if isinstance(stated, str) else None)
    raise ProviderInvalidRequest(f"a part with {', '.join(part)} has no counterpart")


def _calling(choice: ToolChoice) -> dict[str, Any]:
    if isinstance(choice, ToolChoiceForce):
        return {"mode": "ANY", "allowedFunctionNames": [choice.name]}
    return {"mode": _MODES[choice]}


def _usage(value: Any) -> Usage:
    return Usage(
        count(value, "promptTokenCount"),
        count(value, "candidatesTokenCount"),
        count(value, "totalTokenCount"),
        count(value, "cachedContentTokenCount"),
    )

"""Checks a call before it is sent (OpenArmature §3, §4, §5). Every error names the field at fault."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, get_args

from gateway.errors import ProviderInvalidRequest, ProviderUnsupportedContentBlock
from gateway.provider.messages import (
    AssistantMessage,
    Detail,
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
from gateway.provider.request import Capabilities, RuntimeConfig, Tool, ToolChoice, ToolChoiceForce
from gateway.schema.objects import ObjectSchema

_IMAGE_TYPE = re.compile(r"image/[A-Za-z0-9][A-Za-z0-9.+-]*")


def check_tools(tools: Sequence[Tool] | None) -> dict[str, ObjectSchema]:
    """Returns the schema of each tool's parameters, by the tool's name (§4)."""
    schemas: dict[str, ObjectSchema] = {}
    for index, tool in enumerate(_sequence(tools or (), "tools")):
        where = f"tools[{index}]"
        if not isinstance(tool, Tool):
            _refuse(where, f"must be a Tool, not {type(tool).__name__}")
        _text(tool.name, f"{where}.name")
        if not isinstance(tool.description, str):
            _refuse(f"{where}.description", "must be a string")
        if tool.name in schemas:
            _refuse(f"{where}.name", f"{tool.name!r} is in the list twice")
        schemas[tool.name] = ObjectSchema(tool.parameters, f"{where}.parameters")
    return schemas


def conforming(tools: Sequence[Tool]) -> Callable[[ToolCall], bool]:
    """Whether `check_messages` takes a call: its arguments conform to the tool's schema, or there is no such tool."""
    schemas = check_tools(tools)

    def conforms(call: ToolCall) -> bool:
        schema = schemas.get(call.name)
        return schema is None or (call.arguments is not None and schema.violation(call.arguments) is None)

    return conforms


def check_tool_choice(choice: ToolChoice | None, tools: Mapping[str, ObjectSchema]) -> None:
    """§5: `required` and a forced tool need tools, and the forced one must be among them."""
    if choice is None or choice == "auto" or choice == "none":
        return
    if choice == "required":
        if not tools:
            _refuse("tool_choice", "'required' needs at least one tool")
    elif isinstance(choice, ToolChoiceForce):
        _text(choice.name, "tool_choice.name")
        if choice.name not in tools:
            _refuse("tool_choice", f"the tool {choice.name!r} is not among the tools of this call")
    else:
        _refuse("tool_choice", f"must be 'auto', 'required', 'none' or a ToolChoiceForce, not {choice!r}")


def check_config(config: RuntimeConfig | None) -> None:
    if config is not None and not isinstance(config, RuntimeConfig):
        _refuse("config", f"must be a RuntimeConfig, not {type(config).__name__}")
    if config is None:
        return
    if not isinstance(config.extra, Mapping):
        _refuse("config.extra", f"must be a mapping, not {type(config.extra).__name__}")
    if config.stop_sequences is not None:
        for index, text in enumerate(_sequence(config.stop_sequences, "config.stop_sequences")):
            _text(text, f"config.stop_sequences[{index}]")


def check_messages(messages: Sequence[Message], tools: Mapping[str, ObjectSchema], capabilities: Capabilities) -> None:
    """Checks the order and shape of the messages, and that each tool result answers an earlier call (§3, §5).

    Raises ProviderInvalidRequest, or ProviderUnsupportedContentBlock for an image that the model doesn't take.
    """
    called: set[str] = set()
    for index, message in enumerate(_sequence(messages, "messages")):
        where = f"messages[{index}]"
        match message:
            case SystemMessage():
                if index > 0:
                    _refuse(where, "a system message may only be the first")
                _text(message.content, f"{where}.content")
            case UserMessage():
                _check_user_content(message.content, f"{where}.content", capabilities)
            case AssistantMessage():
                _check_assistant(message, where, tools)
                called.update(call.id for call in message.tool_calls)
            case ToolMessage():
                if not isinstance(message.content, str):
                    _refuse(f"{where}.content", "must be a string")
                _text(message.tool_call_id, f"{where}.tool_call_id")
                if message.tool_call_id not in called:
                    _refuse(f"{where}.tool_call_id", f"no earlier assistant message calls {message.tool_call_id!r}")
            case _:
                _refuse(where, f"must be a Message, not {type(message).__name__}")
        if index == 0 and not isinstance(message, SystemMessage | UserMessage):
            _refuse(where, "a conversation begins with a system or a user message")
    if not messages:
        _refuse("messages", "at least one message is needed")
    if not isinstance(messages[-1], UserMessage | ToolMessage):
        _refuse(f"messages[{len(messages) - 1}]", "the last message must be a user or a tool message")


def _check_assistant(message: AssistantMessage, where: str, tools: Mapping[str, ObjectSchema]) -> None:
    _check_answer_content(message.content, f"{where}.content")
    calls = _sequence(message.tool_calls, f"{where}.tool_calls")
    if not message.content and not calls:
        _refuse(where, "an assistant message needs content or tool calls")
    ids: set[str] = set()
    for index, call in enumerate(calls):
        place = f"{where}.tool_calls[{index}]"
        if not isinstance(call, ToolCall):
            _refuse(place, f"must be a ToolCall, not {type(call).__name__}")
        _text(call.id, f"{place}.id")
        _text(call.name, f"{place}.name")
        if call.id in ids:
            _refuse(f"{place}.id", f"{call.id!r} is in one message twice")
        ids.add(call.id)
        if not isinstance(call.arguments, Mapping):
            _refuse(f"{place}.arguments", "must be a mapping; repair the arguments of a degraded answer first")
        if (schema := tools.get(call.name)) and (reason := schema.violation(call.arguments)):
            _refuse(f"{place}.arguments", f"don't conform to the tool's schema: {reason}")
        _signature(call.signature, place)


def _check_answer_content(content: object, where: str) -> None:
    if isinstance(content, str):
        return
    for index, block in enumerate(_sequence(content, where)):
        place = f"{where}[{index}]"
        match block:
            case TextBlock() | ThinkingBlock():
                _signature(block.signature, place)
                if isinstance(block, TextBlock) or not block.signature:  # a server may keep signed reasoning to itself
                    _text(block.text, f"{place}.text")
            case RedactedThinkingBlock():
                _text(block.data, f"{place}.data")
            case _:
                kinds = "a TextBlock, a ThinkingBlock or a RedactedThinkingBlock"
                _refuse(place, f"must be {kinds}, not {type(block).__name__}")


def _check_user_content(content: object, where: str, capabilities: Capabilities) -> None:
    if isinstance(content, str):
        _text(content, where)
        return
    blocks = _sequence(content, where)
    if not blocks:
        _refuse(where, "needs at least one content block")
    for index, block in enumerate(blocks):
        place = f"{where}[{index}]"
        match block:
            case TextBlock():
                _text(block.text, f"{place}.text")
            case ImageBlock():
                _check_image(block, place, capabilities)
            case _:
                _refuse(place, f"must be a TextBlock or an ImageBlock, not {type(block).__name__}")


def _check_image(block: ImageBlock, where: str, capabilities: Capabilities) -> None:
    if block.detail is not None and block.detail not in get_args(Detail):
        _refuse(f"{where}.detail", f"must be one of {', '.join(get_args(Detail))}, not {block.detail!r}")
    match block.source:
        case UrlSource():
            _text(block.source.url, f"{where}.source.url")
        case InlineSource():
            _text(block.source.base64_data, f"{where}.source.base64_data")
            # The type becomes part of a data: URI, so nothing but a plain media type may pass.
            if not isinstance(block.media_type, str) or not _IMAGE_TYPE.fullmatch(block.media_type):
                _refuse(
                    f"{where}.media_type", f"an inline image needs one such as 'image/png', not {block.media_type!r}"
                )
            accepted = capabilities.image_media_types
            if accepted is not None and block.media_type not in accepted:
                raise ProviderUnsupportedContentBlock(
                    f"{where}.media_type: this model takes {', '.join(sorted(accepted))}, not {block.media_type}",
                    param=f"{where}.media_type",
                )
        case _:
            _refuse(f"{where}.source", "must be a UrlSource or an InlineSource")
    if not capabilities.image_input:
        raise ProviderUnsupportedContentBlock(f"{where}: this model takes no images", param=where)


def _sequence(value: object, where: str) -> Sequence[object]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        _refuse(where, f"must be a sequence, not {type(value).__name__}")
    return value


def _text(value: object, where: str) -> None:
    if not isinstance(value, str):
        _refuse(where, f"must be a string, not {type(value).__name__}")
    if not value:
        _refuse(where, "must not be empty")


def _signature(value: object, where: str) -> None:
    if value is not None and not isinstance(value, str):
        _refuse(f"{where}.signature", f"must be a string, not {type(value).__name__}")


def _refuse(where: str, reason: str) -> NoReturn:
    raise ProviderInvalidRequest(f"{where}: {reason}", param=where)

"""Reads `POST /v1/messages` and translates it to a chat request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from gateway.errors import ProviderInvalidRequest, ProviderUnsupportedContentBlock
from gateway.wire import body
from gateway.wire.body import Name, Stop, check_id
from gateway.wire.chat import encode
from gateway.wire.conversation import Conversation, Message, image_part, text_part
from gateway.wire.text import short

Block = dict[str, Any]

OURS = (None, "custom")
"""Types of the tools that the client runs; Anthropic's servers run all others."""

HIDDEN_BLOCKS = (
    *("redacted_thinking", "fallback", "compaction", "server_tool_use", "mcp_tool_use", "mcp_tool_result"),
    *("web_search_tool_result", "web_fetch_tool_result", "tool_search_tool_result", "code_execution_tool_result"),
    *("bash_code_execution_tool_result", "text_editor_code_execution_tool_result", "advisor_tool_result"),
    *("mcp_tool_listing", "container_upload"),
)
"""Blocks of earlier answers that other models can't use."""
UNREAD_BLOCKS = ("container_upload", "tool_addition", "tool_removal")
"""What nobody reads of a user's and of a system's message: files for code that Anthropic's servers run, and changes of
the tools, for which see `tools_of`."""

BILLING = "x-anthropic-billing-header:"
"""Starts a line of Claude Code's system prompt that is meant for Anthropic's servers. It changes with each request, so
keeping it would defeat the engines' prompt caches. It is the first line of a block, often the only one."""


_LEFT = r"<total_tokens>[\d.,]+ tokens left</total_tokens>"
_USED = r"Token usage: [\d.,]+/[\d.,]+; -?[\d.,]+ remaining"
_REMINDER = rf"<(?:system-reminder|system_warning)>\s*(?:{_LEFT}|{_USED})\s*</(?:system-reminder|system_warning)>"
_COUNTDOWN_LINES = re.compile(rf"(?m)^[ \t]*(?:{_LEFT}|{_REMINDER})[ \t]*(?:\n|\Z)")
"""Claude Code's count of the tokens that are left, in a system text. It changes with each turn, too."""
_LAST_COUNTDOWN = re.compile(rf"\A\s*{_LEFT}\s*\Z|(?:\A|\n)[ \t]*{_REMINDER}\s*\Z")
"""The same as a user's whole text, or as the reminder at the end of it. Anywhere else, it may be quoted."""


class InputMessage(Struct):
    """role: user or assistant; system in the middle of a conversation."""

    role: str
    content: str | list[Block]


class Tool(Struct):
    """name: only a toolset of Anthropic's servers has none."""

    name: Annotated[str, Meta(min_length=1)] | None = None
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: str | None = None
    strict: bool | None = None
    defer_loading: bool | None = None

    def check(self, place: str) -> None:
        """Raises ProviderInvalidRequest."""
        if self.name is None and self.type in OURS:
            raise _invalid(f"{place}.name", f"{place}.name: field required")


class ToolChoice(Struct):
    """type: auto, any, tool or none."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct):
    """type: enabled, adaptive or disabled. display: `omitted` leaves the text of thinking blocks empty."""

    type: str
    budget_tokens: int | None = None
    display: str | None = None


class OutputConfig(Struct):
    effort: str | None = None
    format: dict[str, Any] | None = None


class Sampling(Struct, kw_only=True):
    """How the model chooses its tokens, and where it ends."""

    max_tokens: int | None = None
    stop_sequences: list[Stop] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


class CreateMessage(Sampling, kw_only=True):
    """The fields that the gateway uses. It accepts and ignores Anthropic's other fields."""

    messages: list[InputMessage]
    model: Name | None = None
    system: str | list[Block] | None = None
    stream: bool | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    mcp_servers: list[Any] | None = None

    @classmethod
    def parse(cls, data: bytes, *, counting: bool = False) -> CreateMessage:
        """counting: for `count_tokens`, which takes no `max_tokens`. Raises ProviderInvalidRequest."""
        request = body.read(_decoder, data)
        if not request.messages:
            raise _invalid("messages", "messages: at least one message is required")
        if request.max_tokens is None and not counting:
            raise _invalid("max_tokens", "max_tokens: field required")
        if request.max_tokens is not None and request.max_tokens < 1:
            raise _invalid("max_tokens", "max_tokens: must be at least 1")
        for place, tool in enumerate(request.tools or ()):
            tool.check(f"tools[{place}]")
        return request

    @property
    def thinks(self) -> bool:
        """Whether the client asks for the model's reasoning."""
        return self.thinking is not None and self.thinking.type != "disabled"


_decoder = msgspec.json.Decoder(CreateMessage)


def chat_fields(request: CreateMessage) -> dict[str, Any]:
    """The fields of the chat request. Raises ProviderInvalidRequest and ProviderUnsupportedContentBlock."""
    conversation = Conversation()
    conversation.system(_system(request.system))
    for position, message in enumerate(request.messages):
        _add(conversation, message, f"messages[{position}]")
    fields: dict[str, Any] = {"messages": conversation.messages(), "stream": bool(request.stream)}
    if not fields["messages"]:
        raise _invalid("messages", "messages: they contain nothing that a model can read")
    if request.stream:
        fields["stream_options"] = {"include_usage": True}
    for name, value in {
        "model": request.model,
        "service_tier": "default" if request.service_tier == "standard_only" else request.service_tier,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "stop": request.stop_sequences or None,
        "reasoning_effort": request.output_config and request.output_config.effort,
    }.items():
        if value is not None:
            fields[name] = value
    # Off unless asked for, as in Anthropic's API. Templates without this switch ignore it.
    fields["chat_template_kwargs"] = {"enable_thinking": request.thinks}
    config = request.output_config
    if (format := request.output_format or (config.format if config is not None else None)) is not None:
        fields["response_format"] = _response_format(format)
    if tools := tools_of(request):
        fields["tools"] = [_function(tool) for tool in tools]
    # If every tool was dropped, drop the choice too. A choice without any declared tool is the client's error.
    if request.tool_choice is not None and (tools or not request.tools):
        fields |= _tool_choice(request.tool_choice)
    return fields


def tools_of(request: CreateMessage) -> list[Tool]:
    """The tools to show to the model: none that Anthropic runs itself, a deferred one only once the conversation
    mentions it, and none that it has withdrawn. Raises ProviderInvalidRequest for one that it defines badly."""
    tools = {tool.name: tool for tool in _declared(request) if tool.input_schema is not None and tool.type in OURS}
    shown = {tool.name: not tool.defer_loading for tool in request.tools or ()}
    for message in request.messages:
        for block in _blocks(message.content):
            match block:
                case {"type": "tool_reference"}:
                    shown[str(block.get("tool_name") or block.get("name"))] = True
                case {"type": "tool_addition", "tool": {"definition": {"name": str(name)}}}:
                    shown[name] = True
                case {"type": "tool_addition" | "tool_removal" as kind, "tool": {"name": str(name), **about}}:
                    # Functions of MCP servers have a name of their own; nobody calls them here.
                    if "server_name" not in about:
                        shown[name] = kind == "tool_addition"
    return [tool for name, tool in tools.items() if shown[name]]


def _declared(request: CreateMessage) -> list[Tool]:
    """The request's tools, and those that its messages define."""
    found = [*(request.tools or ())]
    for position, message in enumerate(request.messages):
        for block in _blocks(message.content):
            match block:
                case {"type": "tool_addition", "tool": {"definition": definition}}:
                    place = f"messages[{position}].content.tool.definition"
                    try:
                        tool = msgspec.convert(definition, Tool)
                    except msgspec.ValidationError as error:
                        raise body.misfit(error, place) from None
                    tool.check(place)
                    found.append(tool)
    return found


def dropped(request: CreateMessage) -> list[str]:
    """The types of Anthropic's own tools, which the gateway can't run, and the field of the servers it doesn't ask."""
    servers = ["mcp_servers"] if request.mcp_servers else []
    return [tool.type for tool in _declared(request) if tool.type is not None and tool.type not in OURS] + servers


def _blocks(content: object) -> Iterator[Mapping[str, Any]]:
    """All blocks of a content, and those within them."""
    for block in content if isinstance(content, list) else ():
        if isinstance(block, Mapping):
            yield block
            yield from _blocks(block.get("content"))


def _function(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _tool_choice(choice: ToolChoice) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if choice.disable_parallel_tool_use:
        fields["parallel_tool_calls"] = False
    match choice.type:
        case "auto" | "none":
            fields["tool_choice"] = choice.type
        case "any":
            fields["tool_choice"] = "required"
        case "tool" if choice.name:
            fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
        case _:
            raise _invalid("tool_choice", "tool_choice.type: must be auto, any, none, or tool with a name")
    return fields


def _response_format(format: dict[str, Any]) -> dict[str, Any]:
    schema = format.get("schema")
    if format.get("type") != "json_schema" or not isinstance(schema, dict):
        raise _invalid("output_config.format", "output_config.format: must be json_schema with a schema")
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": schema, "strict": True}}


def _system(system: str | list[Block] | None) -> str:
    if system is None or isinstance(system, str):
        return _without_billing(system or "")
    texts = [_without_billing(_text(block, "text", f"system[{place}]")) for place, block in enumerate(system)]
    return "\n\n".join(text for text in texts if text)


def _without_billing(text: str) -> str:
    text = text.partition("\n")[2] if text.startswith(BILLING) else text
    return _without_countdown(text, _COUNTDOWN_LINES)


def _without_countdown(text: str, countdown: re.Pattern[str] = _LAST_COUNTDOWN) -> str:
    if "<total_tokens>" not in text and "Token usage: " not in text:
        return text
    rest = countdown.sub("", text)
    return text if rest == text else rest.rstrip("\n")


def _add(conversation: Conversation, message: InputMessage, place: str) -> None:
    content: list[Block] = [text_part(message.content)] if isinstance(message.content, str) else message.content
    blocks = [(block, f"{place}.content[{position}]") for position, block in enumerate(content)]
    match message.role:
        case "user":
            # Results first: they must directly follow their calls.
            rest: list[Message] = []
            for block, at in blocks:
                if block.get("type") == "tool_result":
                    text, images = _result(block, at)
                    conversation.result(check_id(_text(block, "tool_use_id", at), f"{at}.tool_use_id"), text)
                    rest += images
                else:
                    rest += _parts(block, at)
            conversation.user(rest)
        case "assistant":
            for block, at in blocks:
                _add_answer(conversation, block, at)
        case "system":
            parts = [part for block, at in blocks for part in _parts(block, at)]
            texts = [_without_billing(part["text"]) for part in parts if part["type"] == "text"]
            conversation.system("\n\n".join(text for text in texts if text))
        case _:
            raise _invalid(f"{place}.role", f"{place}.role: must be user or assistant")


def _add_answer(conversation: Conversation, block: Block, place: str) -> None:
    kind = block.get("type")
    if kind == "text":
        conversation.assistant(text=_text(block, "text", place))
    elif kind == "thinking":
        conversation.assistant(reasoning=_text(block, "thinking", place))
    elif kind == "tool_use":
        arguments = encode(block.get("input") or {}).decode()
        call = {
            "id": check_id(_text(block, "id", place), f"{place}.id"),
            "name": _text(block, "name", place),
            "arguments": arguments,
        }
        conversation.assistant(call=call)
    elif kind not in HIDDEN_BLOCKS:
        raise _unsupported(kind, place)


def _parts(block: Any, place: str) -> list[Message]:
    if not isinstance(block, Mapping):
        raise _invalid(place, f"{place}: must be an object with a type")
    kind = block.get("type")
    if kind == "text":
        given = _text(block, "text", place)
        text = _without_countdown(given)
        return [text_part(text)] if text or not given else []
    if kind == "image":
        return [_image(block.get("source"), place)]
    if kind == "document":
        return _document(block, place)
    if kind == "search_result":
        found = block.get("content") or []
        if not isinstance(found, list):
            raise _invalid(f"{place}.content", f"{place}.content: must be a list of blocks")
        texts = [_text(inner, "text", f"{place}.content[{at}]") for at, inner in enumerate(found)]
        return [text_part("\n".join((str(block.get("title") or ""), str(block.get("source") or ""), *texts)))]
    if kind in UNREAD_BLOCKS:
        return []
    if kind == "tool_reference":
        return [text_part(f"The tool {block.get('tool_name') or block.get('name')} can be called now.")]
    raise _unsupported(kind, place)


def _image(source: Any, place: str) -> Message:
    match source:
        case {"type": "base64", "media_type": str(kind), "data": str(data)}:
            return image_part(f"data:{kind};base64,{data}")
        case {"type": "url", "url": str(url)}:
            return image_part(url)
    raise ProviderUnsupportedContentBlock(f"{place}.source: must be base64 or url", param=f"{place}.source")


def _document(block: Mapping[str, Any], place: str) -> list[Message]:
    about = [text_part(str(block[name])) for name in ("title", "context") if block.get(name)]
    match block.get("source"):
        case {"type": "text", "data": str(text)}:
            return [*about, text_part(text)]
        case {"type": "content", "content": str(text)}:
            return [*about, text_part(text)]
        case {"type": "content", "content": list(blocks)}:
            inner = [_parts(one, f"{place}.source.content[{at}]") for at, one in enumerate(blocks)]
            return [*about, *(part for parts in inner for part in parts)]
    message = f"{place}: only text documents are supported, not PDF files"
    raise ProviderUnsupportedContentBlock(message, param=place)


def _result(block: Block, place: str) -> tuple[str, list[Message]]:
    """A result's text, and its images, which a tool message can't contain."""
    content = block.get("content")
    if content is None or isinstance(content, str):
        parts = [text_part(_without_countdown(content or ""))]
    elif isinstance(content, list):
        parts = [part for at, one in enumerate(content) for part in _parts(one, f"{place}.content[{at}]")]
    else:
        raise _invalid(f"{place}.content", f"{place}.content: must be a string or a list of blocks")
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    if block.get("is_error") and not text[:16].lower().lstrip("<").startswith(("error", "tool_use_error")):
        text = f"Error: {text}"
    return text, [part for part in parts if part["type"] != "text"]


def _text(block: Any, name: str, place: str) -> str:
    value = block.get(name) if isinstance(block, Mapping) else None
    if not isinstance(value, str):
        raise _invalid(f"{place}.{name}", f"{place}.{name}: must be a string")
    return value


def _unsupported(kind: object, place: str) -> ProviderUnsupportedContentBlock:
    return ProviderUnsupportedContentBlock(f"{place}: blocks of type {short(kind)} are not supported", param=place)


def _invalid(param: str, message: str) -> ProviderInvalidRequest:
    return ProviderInvalidRequest(message, param=param)

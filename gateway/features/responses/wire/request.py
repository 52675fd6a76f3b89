"""Reads `POST /v1/responses` and translates it to a chat request."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct, field

from gateway.errors import ProviderInvalidRequest, ProviderUnsupportedContentBlock
from gateway.wire import body
from gateway.wire.allowed_tools import ALLOWED_TOOLS, check_function, choice_of, listed, mode_of, name_of
from gateway.wire.body import Name, check_id
from gateway.wire.chat import encode
from gateway.wire.conversation import Conversation, Message, image_part, text_part
from gateway.wire.stored import check_metadata
from gateway.wire.text import short

Item = dict[str, Any]

SEALED = "ctxgate:"
"""Prefix of an item's `encrypted_content`, before base64. Clients that store no responses here send reasoning back in
it, and summaries of conversations. It isn't secret, so it isn't encrypted."""

REFERENCE = "item_reference"
"""The type of an item that names a stored one."""
IGNORED_ITEMS = (
    *("mcp_list_tools", "mcp_approval_request", "mcp_approval_response"),
    *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"),
    *("tool_search_call", "tool_search_output", "computer_call", "computer_call_output"),
    *("local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output"),
    *("apply_patch_call", "apply_patch_call_output", "program", "program_output", "additional_tools", REFERENCE),
)
"""Items of tools that OpenAI's own models have: other models can't use them. And names of items that nobody stored."""
CALLS = ("function_call", "custom_tool_call", "mcp_call")
FILE = "input_file"
"""The type of a message's part."""
LONGEST_ECHO = 2_000_000
"""Characters of what a response repeats, and the store keeps: the instructions; tools and the format of the text."""
NAMESPACE = "__"
"""Joins a namespace and the name of a tool in it."""


class Reasoning(Struct):
    """generate_summary: the former name of summary."""

    effort: Name | None = None
    summary: Name | None = None
    generate_summary: Name | None = None

    @property
    def summed(self) -> str | None:
        """The summary that the client wants."""
        summary = self.summary or self.generate_summary
        return None if summary == "none" else summary


class TextFormat(Struct):
    """type: text, json_object or json_schema."""

    type: str
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class TextOptions(Struct):
    format: TextFormat | None = None
    verbosity: Name | None = None


class ConversationName(Struct):
    id: Name


class CreateResponse(Struct, kw_only=True):
    """The fields that the gateway uses. It accepts and ignores OpenAI's other fields."""

    model: Name | None = None
    input: str | list[Item] = field(default_factory=list)
    instructions: Annotated[str, Meta(max_length=LONGEST_ECHO)] | None = None
    previous_response_id: Name | None = None
    conversation: Name | ConversationName | None = None
    prompt: Any = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    tools: list[Item] | None = None
    tool_choice: str | Item | None = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: Annotated[int, Meta(ge=0)] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_output_tokens: int | None = None
    max_tool_calls: Annotated[int, Meta(ge=0)] | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    user: Name | None = None
    prompt_cache_key: Name | None = None
    safety_identifier: Name | None = None
    service_tier: Name | None = None
    seed: int | None = None
    truncation: Name | None = None

    @classmethod
    def parse(cls, data: bytes) -> CreateResponse:
        """Raises ProviderInvalidRequest, which names the invalid field."""
        request = body.read(_decoder, data)
        check_metadata(request.metadata)
        if len(data) > LONGEST_ECHO and len(encode((request.tools, request.text))) > LONGEST_ECHO:
            raise _invalid("tools", f"tools: they have over {LONGEST_ECHO} bytes, together with text.format")
        if request.prompt is not None:
            raise _invalid("prompt", "prompt refers to data on OpenAI's servers; send instructions and input instead")
        if request.max_output_tokens is not None and request.max_output_tokens < 1:
            raise _invalid("max_output_tokens", "max_output_tokens: must be at least 1")
        if request.truncation not in (None, "auto", "disabled"):
            raise _invalid("truncation", "truncation: must be auto or disabled")
        if request.conversation is not None and request.previous_response_id is not None:
            message = "conversation: not together with previous_response_id, which has a conversation of its own"
            raise _invalid("conversation", message)
        if not request.input and request.previous_response_id is None and request.conversation is None:
            raise _invalid("input", "input: a string or at least one item is required")
        return request

    @property
    def conversation_id(self) -> str | None:
        given = self.conversation
        return given.id if isinstance(given, ConversationName) else given

    @property
    def items(self) -> list[Item]:
        """The input as a list of items."""
        return as_items(self.input)

    def includes(self, include: str) -> bool:
        """Whether the client asks for this extra output."""
        return include in (self.include or ())


_decoder = msgspec.json.Decoder(CreateResponse)


def as_items(given: str | list[Item]) -> list[Item]:
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": given}]}]
    return given


class AllowedServer(NamedTuple):
    """An MCP server whose tools the model may call. place: of the tool in the request."""

    label: str
    allowed: frozenset[str] | None
    """Names of its tools; None: all."""
    read_only: bool
    place: str


class ToolTable:
    """Maps the declared tools to chat functions.

    A namespaced tool gets the namespace in its name; a custom tool becomes a function with the string `input`. MCP
    servers are listed in `servers`, for whoever can `add_remote` their tools. Drops the tools that OpenAI runs itself
    (`web_search`, …) and lists their types in `dropped`.
    """

    def __init__(self, tools: Sequence[Item] | None) -> None:
        self.declared: list[Item] = []
        self.dropped: list[str] = []
        self.servers: list[AllowedServer] = []
        self._custom: set[str] = set()
        self._taken: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._labels: set[str] = set()
        self._remote: dict[str, tuple[str, str]] = {}
        self._namespaces: dict[str, tuple[str, str]] = {}
        for position, tool in enumerate(tools or ()):
            self._add(tool, f"tools[{position}]", None)

    def is_custom(self, name: str) -> bool:
        return name in self._custom

    def split(self, name: str) -> tuple[str | None, str]:
        """The namespace and name under which the client declared the tool."""
        return self._namespaces.get(name, (None, name))

    def remote(self, name: str) -> tuple[str, str] | None:
        """The MCP server's label and the tool's name there, for a function that stands for such a tool."""
        return self._remote.get(name)

    def add_remote(self, label: str, name: str, description: str, parameters: Mapping[str, Any]) -> None:
        function = remote_name(label, name)
        base = function[:56]  # with any number it is no longer than engines allow
        number = self._numbers.get(base, 2)
        while function in self._taken:
            function, number = f"{base}_{number}", number + 1
        self._numbers[base] = number
        self._remote[function] = label, name
        self._declare({"name": function, "description": description, "parameters": {**parameters}})

    def _declare(self, function: Item) -> None:
        self._taken.add(function["name"])
        self.declared.append({"type": "function", "function": function})

    def _add(self, tool: Item, place: str, namespace: str | None) -> None:
        kind = tool.get("type")
        if kind == "namespace":
            tools = tool.get("tools") or []
            if not isinstance(tools, list) or not all(isinstance(inner, dict) for inner in tools):
                raise _invalid(f"{place}.tools", f"{place}.tools: must be a list of tools")
            for position, inner in enumerate(tools):
                self._add(inner, f"{place}.tools[{position}]", tool.get("name"))
            return
        if kind == "mcp":
            self.servers.append(server := _server(tool, place))
            if server.label in self._labels:
                message = f"{place}.server_label: an earlier tool names the server {short(server.label)}: list it once"
                raise _invalid(f"{place}.server_label", message)
            self._labels.add(server.label)
            return
        if kind not in ("function", "custom"):
            self.dropped.append(str(kind))
            return
        name = tool.get("name")
        if not isinstance(name, str) or not name:
            raise _invalid(f"{place}.name", f"{place}.name: a tool needs a name")
        known = joined(namespace, name)
        if namespace is not None:
            self._namespaces[known] = (namespace, name)
        function: Item = {"name": known}
        if kind == "custom":
            self._custom.add(known)
            function |= _custom(tool)
        else:
            if isinstance(tool.get("description"), str):
                function["description"] = tool["description"]
            function["parameters"] = tool.get("parameters") or {"type": "object", "properties": {}}
            if isinstance(tool.get("strict"), bool):
                function["strict"] = tool["strict"]
        self._declare(function)


NOT_OURS = {
    "server_url": "this gateway uses the MCP servers of its own configuration alone: leave it out",
    "connector_id": "connectors are OpenAI's: leave it out, and name a server of the gateway's configuration",
    "tunnel_id": "tunnels are OpenAI's: leave it out, and name a server of the gateway's configuration",
    "headers": "the gateway's configuration has the headers of its MCP servers: leave it out",
    "authorization": "the gateway's configuration has the keys of its MCP servers: leave it out",
}
"""Fields of an MCP tool that would lead elsewhere, and what to do about them."""


def _server(tool: Item, place: str) -> AllowedServer:
    for name, cure in NOT_OURS.items():
        if tool.get(name) is not None:
            raise _invalid(f"{place}.{name}", f"{place}.{name}: {cure}")
    approval = tool.get("require_approval")
    if approval not in (None, "never") and not (isinstance(approval, Mapping) and not approval.get("always")):
        message = f"{place}.require_approval: the gateway asks for no approvals: send never, and allowed_tools"
        raise _invalid(f"{place}.require_approval", message)
    allowed = tool.get("allowed_tools")
    read_only = isinstance(allowed, Mapping) and allowed.get("read_only") is True
    names = allowed.get("tool_names") if isinstance(allowed, Mapping) else allowed
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise _invalid(f"{place}.allowed_tools", f"{place}.allowed_tools: must be a list of names")
    return AllowedServer(
        _text(tool, "server_label", place), None if names is None else frozenset(names), read_only, place
    )


def remote_name(label: str, name: str) -> str:
    """The name of the function that stands for an MCP server's tool."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", f"{label}_{name}")[:64]


def joined(namespace: object, name: str) -> str:
    return f"{namespace}{NAMESPACE}{name}" if isinstance(namespace, str) else name


def _custom(tool: Item) -> Item:
    description = str(tool.get("description") or "")
    format = tool.get("format")
    if isinstance(format, Mapping) and format.get("type") == "grammar":
        description += f"\n\nThe input is text of this {format.get('syntax', '')} grammar:\n{format.get('definition')}"
    parameters = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    return {"description": description.strip(), "parameters": parameters}


def chat_fields(request: CreateResponse, items: Iterable[Item], tools: ToolTable) -> dict[str, Any]:
    """The fields of the chat request. items: the whole conversation, including earlier responses.

    Raises ProviderInvalidRequest and ProviderUnsupportedContentBlock.
    """
    fields: dict[str, Any] = {"messages": messages(request.instructions, items), "stream": bool(request.stream)}
    if fields["stream"]:
        fields["stream_options"] = {"include_usage": True}
    for name, value in {
        "model": request.model,
        "service_tier": request.service_tier,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "max_tokens": request.max_output_tokens,
        "parallel_tool_calls": request.parallel_tool_calls if tools.declared else None,
        "reasoning_effort": request.reasoning and request.reasoning.effort,
        "seed": request.seed,
        "user": request.user,
    }.items():
        if value is not None:
            fields[name] = value
    if request.top_logprobs or request.includes("message.output_text.logprobs"):
        fields |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    if request.text is not None and request.text.format is not None:
        fields |= _response_format(request.text.format)
    choice = None if request.tool_choice is None else _tool_choice(request.tool_choice, tools)
    if tools.declared:
        fields["tools"] = tools.declared
        if choice is not None:
            fields["tool_choice"] = choice
    return fields


def _response_format(format: TextFormat) -> dict[str, Any]:
    if format.type == "text":
        return {}
    if format.type == "json_object":
        return {"response_format": {"type": "json_object"}}
    if format.type != "json_schema" or format.schema is None:
        raise _invalid("text.format", "text.format: must be text, json_object, or json_schema with a schema")
    schema: dict[str, Any] = {"name": format.name or "response", "schema": format.schema}
    if format.strict is not None:
        schema["strict"] = format.strict
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _tool_choice(choice: str | Item, tools: ToolTable) -> Any:
    """Chat's `tool_choice`."""
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise _invalid("tool_choice", f"tool_choice: must be auto, none or required, not {short(choice)}")
        if choice == "required" and not tools.declared:
            raise _invalid("tool_choice", "tool_choice: required needs at least one callable tool")
        return choice
    kind = choice.get("type")
    if kind == ALLOWED_TOOLS:
        return choice_of(_allowed(choice, tools), mode_of(choice, "tool_choice"))
    if kind == "mcp":
        return choice_of(_of_server(choice, "tool_choice", tools), "required")
    if kind in ("function", "custom"):
        return {"type": "function", "function": {"name": _named(choice)}}
    raise _invalid("tool_choice", f"tool_choice: tools of type {short(kind)} are not supported")


def _allowed(choice: Item, tools: ToolTable) -> list[str]:
    """The names of the functions that the model may call."""
    declared = {tool["function"]["name"] for tool in tools.declared}
    names: list[str] = []
    servers: set[tuple[object, object]] = set()
    for entry, place in listed(choice, "tool_choice"):
        kind = entry.get("type", "function")
        if kind == "mcp":
            names += _of_server(entry, place, tools, servers)
        elif kind not in tools.dropped:
            if kind != "custom":
                check_function(entry, place)
            names.append(name_of({**entry, "name": _named(entry)}, place, declared))
    if not names:
        raise _invalid("tool_choice.tools", "tool_choice.tools: nobody can run any of them: list a function")
    return names


def _of_server(
    choice: Item, place: str, tools: ToolTable, known: set[tuple[object, object]] | None = None
) -> list[str]:
    """known: the servers and tools that earlier entries of a list name; [] for one of them."""
    label, name = choice.get("server_label"), choice.get("name")
    named = str(label), None if name is None else str(name)
    if known is not None and named in known:
        return []
    if known is not None:
        known.add(named)
    found = []
    for tool in tools.declared:
        remote = tools.remote(tool["function"]["name"])
        if remote is not None and remote[0] == label and name in (None, remote[1]):
            found.append(tool["function"]["name"])
    if not found:
        raise _invalid(place, f"{place}: names no tool of an MCP server that the model may call")
    return found


def _named(choice: Mapping[str, Any]) -> str:
    return joined(choice.get("namespace"), str(choice.get("name") or ""))


def messages(instructions: str | None, items: Iterable[Item]) -> list[Message]:
    """Translates items to chat messages. Raises ProviderInvalidRequest and ProviderUnsupportedContentBlock."""
    conversation = Conversation()
    conversation.system(instructions or "")
    items = [*items]
    answers = [
        position for position, item in enumerate(items) if item.get("type") in CALLS or item.get("role") == "assistant"
    ]
    answered = answers[-1] if answers else 0
    for position, item in enumerate(items):
        add_item(conversation, item, f"input[{position}]", past=position < answered)
    found = conversation.messages()
    if not found:
        raise _invalid("input", "input: it contains nothing that a model can read")
    return found


def left_out(items: Iterable[Item]) -> list[str]:
    """The types of the items, and of the parts of messages, that the model doesn't see."""
    kinds = []
    for item in items:
        content = item.get("content")
        parts = [part for part in content if isinstance(part, Mapping)] if isinstance(content, list) else []
        kinds += [str(part["type"]) for part in parts if part.get("type") == FILE]
        kinds += [str(item["type"])] if item.get("type") in IGNORED_ITEMS else []
    return kinds


def is_reference(item: Item) -> bool:
    """Whether it stands for a stored item. Its type may be left out."""
    kind = item.get("type")
    return kind == REFERENCE or (kind is None and "id" in item and not {"role", "content"} & {*item})


def referred_id(item: Item, place: str) -> str:
    """The id of the stored item. Raises ProviderInvalidRequest."""
    return _text(item, "id", place)


def add_item(conversation: Conversation, item: Item, place: str, *, past: bool = False) -> None:
    """past: the model has answered it: files in it are left out, not refused.

    Raises ProviderInvalidRequest and ProviderUnsupportedContentBlock.
    """
    kind = item.get("type") or ("message" if "role" in item else None)
    match kind:
        case "message":
            _add_message(conversation, item, place, past=past)
        case "function_call" | "custom_tool_call":
            conversation.assistant(call=_past_call(item, place))
        case "mcp_call":
            _add_remote_call(conversation, item, place)
        case "function_call_output" | "custom_tool_call_output":
            text, images = _output(item.get("output"), f"{place}.output")
            conversation.result(check_id(_text(item, "call_id", place), f"{place}.call_id"), text)
            conversation.user(images)
        case "reasoning":
            conversation.assistant(reasoning=_past_reasoning(item))
        case "compaction":
            if summary := _unsealed(item):
                conversation.user([text_part(summary)])
        case _ if kind not in IGNORED_ITEMS:
            raise ProviderUnsupportedContentBlock(
                f"{place}: items of type {short(kind)} are not supported", param=place
            )


def _add_message(conversation: Conversation, item: Item, place: str, *, past: bool) -> None:
    role, content = item.get("role"), item.get("content")
    parts = [text_part(content)] if isinstance(content, str) else _parts(content, f"{place}.content", past=past)
    match role:
        case "user":
            conversation.user(parts)
        case "assistant":
            conversation.assistant(text="".join(part["text"] for part in parts if part["type"] == "text"))
        case "system" | "developer":
            conversation.system("\n\n".join(part["text"] for part in parts if part["type"] == "text"))
        case _:
            raise _invalid(f"{place}.role", f"{place}.role: must be user, assistant, system or developer")


def _parts(content: Any, place: str, *, past: bool = False) -> list[Message]:
    if not isinstance(content, list):
        raise _invalid(place, f"{place}: must be a string or a list of parts")
    found = []
    for position, part in enumerate(content):
        at = f"{place}[{position}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("input_text", "output_text", "text"):
            found.append(text_part(_text(part, "text", at)))
        elif kind == "refusal":
            found.append(text_part(_text(part, "refusal", at)))
        elif kind == "input_image" and isinstance(part.get("image_url"), str):
            found.append(image_part(part["image_url"], part.get("detail")))
        elif kind == FILE and past:
            name = part.get("filename")
            found.append(
                text_part(f"[file{f' {name}' if isinstance(name, str) else ''} left out: texts and images alone]")
            )
        else:
            raise ProviderUnsupportedContentBlock(f"{at}: content of type {short(kind)} is not supported", param=at)
    return found


def _output(output: Any, place: str) -> tuple[str, list[Message]]:
    """A result's text, and its images, which a tool message can't contain."""
    if isinstance(output, str):
        return output, []
    if isinstance(output, list):
        parts = _parts(output, place)
        images = [part for part in parts if part["type"] != "text"]
        return "\n".join(part["text"] for part in parts if part["type"] == "text"), images
    return encode(output).decode(), []


def _add_remote_call(conversation: Conversation, item: Item, place: str) -> None:
    """A call that the gateway, or OpenAI, answered itself."""
    name = remote_name(_text(item, "server_label", place), _text(item, "name", place))
    call = {"id": _text(item, "id", place), "name": name, "arguments": item.get("arguments") or "{}"}
    conversation.assistant(call=call)
    output, error = item.get("output"), item.get("error")
    if not isinstance(output, str):
        output = error if isinstance(error, str) else encode(error or "the call was cut off").decode()
    conversation.result(call["id"], output)


def _past_call(item: Item, place: str) -> Message:
    name = joined(item.get("namespace"), _text(item, "name", place))
    if item.get("type") == "custom_tool_call":
        arguments = encode({"input": _text(item, "input", place)}).decode()
    else:
        arguments = item.get("arguments") or "{}"
    return {"id": check_id(_text(item, "call_id", place), f"{place}.call_id"), "name": name, "arguments": arguments}


def _past_reasoning(item: Item) -> str:
    for source in (item.get("content"), item.get("summary")):
        if isinstance(source, list) and source:
            return "".join(str(part.get("text", "")) for part in source if isinstance(part, dict))
    return _unsealed(item)


def _unsealed(item: Item) -> str:
    """The text that `seal` sealed; "" if it is another server's."""
    sealed = item.get("encrypted_content")
    if isinstance(sealed, str) and sealed.startswith(SEALED):
        try:
            return base64.b64decode(sealed.removeprefix(SEALED), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return ""


def seal(reasoning: str) -> str:
    """The `encrypted_content` of an item."""
    return SEALED + base64.b64encode(reasoning.encode()).decode()


def _text(item: Mapping[str, Any], name: str, place: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise _invalid(f"{place}.{name}", f"{place}.{name}: must be a string")
    return value


def _invalid(param: str, message: str) -> ProviderInvalidRequest:
    return ProviderInvalidRequest(message, param=param)

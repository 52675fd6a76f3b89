"""LFM2's prompt and call text, as `template.jinja` renders it, kept in pieces so that training can mask them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SPECIAL_TOKENS = (
    "<|pad|>",
    "<|startoftext|>",
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|tool_list_start|>",
    "<|tool_list_end|>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<|tool_response_start|>",
    "<|tool_response_end|>",
)


@dataclass(frozen=True)
class Call:
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Message:
    """One message; an assistant's text stands before its calls, `after` behind them."""

    role: str
    text: str = ""
    calls: tuple[Call, ...] = ()
    after: str = ""


@dataclass(frozen=True)
class Conversation:
    """`categories[i]` names what the i-th assistant message shows; `json_arguments` renders past calls as the
    template does when an engine hands it their arguments as a JSON string."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    categories: tuple[str, ...] = ()
    sort_keys: bool = False
    json_arguments: bool = field(default=False)


def literal(value: Any) -> str:
    """A JSON value as a Python literal, strings always in double quotes."""
    match value:
        case str():
            return json.dumps(value, ensure_ascii=False)
        case Mapping():
            return "{" + ", ".join(f"{literal(key)}: {literal(item)}" for key, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(literal, value)) + "]"
        case _:
            return repr(value)


def call_text(call: Call) -> str:
    return f"{call.name}({', '.join(f'{key}={literal(value)}' for key, value in call.arguments.items())})"


def _json_call_text(call: Call) -> str:
    return f"{call.name}({json.dumps(call.arguments, ensure_ascii=False)})"


def assistant_text(message: Message, json_arguments: bool = False) -> str:
    if not message.calls:
        return message.text
    write = _json_call_text if json_arguments else call_text
    calls = ", ".join(map(write, message.calls))
    return f"{message.text}<|tool_call_start|>[{calls}]<|tool_call_end|>{message.after}"


def tool_list(tools: Sequence[Mapping[str, Any]], sort_keys: bool = False) -> str:
    listed = ", ".join(json.dumps(tool, ensure_ascii=False, sort_keys=sort_keys) for tool in tools)
    return f"List of tools: <|tool_list_start|>[{listed}]<|tool_list_end|>"


def render(conversation: Conversation) -> list[tuple[str, bool]]:
    """The whole text in pieces `(text, learn)`; what the model has to write itself is marked `learn`."""
    messages = conversation.messages
    system = ""
    if messages and messages[0].role == "system":
        system, messages = messages[0].text, messages[1:]
    if conversation.tools:
        system += ("\n" if system else "") + tool_list(conversation.tools, conversation.sort_keys)
    pieces = [("<|startoftext|>", False)]
    if system:
        pieces.append((f"<|im_start|>system\n{system}<|im_end|>\n", False))
    for message in messages:
        match message.role:
            case "assistant":
                foreign = conversation.json_arguments and bool(message.calls)
                pieces.append(("<|im_start|>assistant\n", False))
                pieces.append((assistant_text(message, foreign) + "<|im_end|>", not foreign))
                pieces.append(("\n", False))
            case "tool":
                body = f"<|tool_response_start|>{message.text}<|tool_response_end|>"
                pieces.append((f"<|im_start|>tool\n{body}<|im_end|>\n", False))
            case role:
                pieces.append((f"<|im_start|>{role}\n{message.text}<|im_end|>\n", False))
    return pieces
